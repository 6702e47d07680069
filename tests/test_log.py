"""moegg.log: what reaches stderr, and that nothing does without a command."""
import logging

import pytest

from moegg import log


@pytest.fixture(autouse=True)
def as_it_was():
    before = log.LOGGER.handlers[:], log.LOGGER.propagate, log.LOGGER.level
    yield
    log.LOGGER.handlers[:], log.LOGGER.propagate = before[:2]
    log.LOGGER.setLevel(before[2])


@pytest.mark.parametrize("verbose, expected", [(False, ""), (True, "moegg: why\n")])
def test_details_need_verbose(capsys, verbose, expected):
    log.configure(verbose)
    log.detail("why")
    assert capsys.readouterr() == ("", expected)


def test_a_warning_is_marked_and_shown_once_per_command(capsys):
    for _ in range(2):
        log.configure(False)
        log.warn("odd 100 %s")
        log.warn("odd 100 %s")
        log.info("note")
    assert capsys.readouterr().err == "moegg: warning: odd 100 %s\nmoegg: note\n" * 2


def test_a_library_user_hears_warnings_through_logging(caplog):
    log.LOGGER.handlers.clear()
    log.LOGGER.propagate = True
    log.LOGGER.setLevel(logging.NOTSET)
    log._warned.clear()
    log.warn("odd")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [("WARNING", "odd")]


@pytest.mark.parametrize("text, shown", [("a\udcff", "a\\xff"), (repr("a\udc80"), "'a\\x80'"), ("é 空", "é 空")])
def test_a_file_name_that_is_not_utf8_shows_its_bytes(text, shown):
    assert log.readable(text) == shown


def test_text_from_a_file_can_neither_drive_the_terminal_nor_forge_a_line(capsys):
    log.configure(False)
    log.warn("unread key 'a\x1b[31m\r\x9b\u202e'\nmoegg: all is well\n  set in")
    assert capsys.readouterr().err == ("moegg: warning: unread key 'a\\x1b[31m\\r\\x9b\\u202e'\n"
                                       "  moegg: all is well\n  set in\n")
