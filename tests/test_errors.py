"""moegg.errors: the tree, the exit codes, the one-line form; how cli.py turns exceptions into them."""
import pytest

from moegg import errors
from moegg.cli import explain
from moegg.errors import ExitStatus, FormatError, InternalError, IOFailure, MoeggError, NoRoom, NotFound

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, MoeggError) and c is not MoeggError]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_every_error_prints_its_message_and_slug(cls):
    e = cls("x.moegg: bad: got 1, expected 2", "some-slug")
    assert str(e).endswith(" [some-slug]") and str(e).startswith("x.moegg: bad: got 1, expected 2")
    assert (e.slug, isinstance(e.exit_status, ExitStatus)) == ("some-slug", True)
    assert explain(e) == (str(e), cls.exit_status)


@pytest.mark.parametrize("name, builtin, status", [
    ("UsageError", ValueError, 2), ("FormatError", ValueError, 3), ("NotFound", FileNotFoundError, 3),
    ("UnsupportedModel", NotImplementedError, 4), ("BudgetTooSmall", MemoryError, 5), ("NoRoom", OSError, 5),
    ("IOFailure", OSError, 6), ("BadRequest", ValueError, 2), ("ContextFull", ValueError, 1), ("Cancelled", Exception, 130),
    ("InternalError", RuntimeError, 70)])
def test_python_callers_can_catch_the_builtin(name, builtin, status):
    cls = getattr(errors, name)
    assert issubclass(cls, builtin) and cls.exit_status == status


def test_the_list_above_is_complete():
    marks = test_python_callers_can_catch_the_builtin.pytestmark[0].args[1]
    assert {m[0] for m in marks} == {c.__name__ for c in CLASSES}


def test_format_error_carries_rule_and_offset():
    e = FormatError("x: bad", "format-magic", rule="R1", offset=8)
    assert (e.rule, e.offset) == ("R1", 8)


def test_a_message_with_line_breaks_still_is_one_line():
    assert explain(MoeggError("a\nb", "s"))[0] == "a b [s]"
    assert "\n" not in explain(KeyError("a\nb"))[0]


@pytest.mark.parametrize("e, status, text", [
    (OSError(28, "No space left on device", "/dev/full"), 6, "/dev/full: No space left on device [io]"),
    (OSError(5, "Input/output error"), 6, "output: Input/output error [io]"),
    (MemoryError(), 5, "[no-memory]"), (KeyboardInterrupt(), 130, ""), (KeyError("x"), 70, "KeyError: 'x'; this is a bug in moegg"),
    (IOFailure("x: read failed", "io"), 6, "x: read failed [io]"), (NoRoom("x", "disk-full"), 5, "x [disk-full]"),
    (NotFound("x", "model-missing"), 3, "x [model-missing]"), (InternalError("x"), 70, "[internal]")])
def test_any_exception_becomes_a_line_and_a_code(e, status, text):
    line, code = explain(e)
    assert text in line and code == status


def test_a_machine_that_gives_no_more_threads_is_no_bug_of_ours():
    line, code = explain(RuntimeError("can't start new thread"))
    assert "[no-memory]" in line and code == ExitStatus.NO_ROOM


def test_a_message_that_lists_what_a_file_holds_keeps_beginning_and_end():
    e = MoeggError(f"m: got {list(range(5000))}, expected less", "s")
    assert e.message.startswith("m: got [0, 1") and e.message.endswith("4999], expected less") and len(str(e)) < 2100
