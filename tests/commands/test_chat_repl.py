"""The chat: commands, messages of several lines, a full context, Ctrl-C; once on a real terminal with the real engine."""
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from moegg.commands.chat_repl import Chat
from moegg.commands.generate import Answer, Prompt
from moegg.commands.output import Output
from moegg.errors import BadRequest, ContextFull

pty = pytest.importorskip("pty")


class FakeSpeaker:
    """Answers with 'answer N' and remembers what it was given; `results` holds exceptions or changed answers."""

    def __init__(self, has_template=True, results=()):
        self.has_template, self.results, self.prompts = has_template, list(results), []
        self.engine = SimpleNamespace(ctx=64, model=SimpleNamespace(ctx_train=512))

    def chat_prompt(self, messages):
        return Prompt(list(messages))

    def raw_prompt(self, text, before=()):
        return Prompt([*before, text])

    def speak(self, prompt):
        self.prompts.append(prompt.ids)
        result = self.results.pop(0) if self.results else {}
        if isinstance(result, Exception):
            raise result
        n = len(self.prompts)
        return Answer(**{"prompt_tokens": 1, "seed": 1, "text": f"answer {n}", "tokens": [n], "finish_reason": "stop"} | result)


def talk(lines, speaker=None, system=None):
    """Feeds lines (an exception in the list is raised) until they end; returns the speaker."""
    speaker = speaker or FakeSpeaker()
    feed = iter(lines)

    def read(prompt):
        item = next(feed, EOFError())
        if isinstance(item, BaseException):
            raise item
        return item
    assert Chat(speaker, Output(), system, False, read).loop("tiny") == 0
    return speaker


def said(messages):
    return [(m["role"], m["content"]) for m in messages]


def test_the_conversation_grows_and_reset_forgets_it():
    prompts = talk(["a", "", "  ", "b", "/reset", "c"]).prompts
    assert [said(p) for p in prompts] == [
        [("user", "a")], [("user", "a"), ("assistant", "answer 1"), ("user", "b")], [("user", "c")]]


def test_system_sets_shows_and_starts_anew(capsys):
    prompts = talk(["a", "/system", "/system be brief", "/system", "b"], system="be kind").prompts
    assert said(prompts[0])[0] == ("system", "be kind") and said(prompts[1]) == [("system", "be brief"), ("user", "b")]
    err = capsys.readouterr().err
    assert "be kind\n" in err and "\nbe brief\n" in err


def test_reasoning_is_kept_beside_the_answer_for_the_template():
    prompts = talk(["a", "b"], FakeSpeaker(results=[{"reasoning": "hm"}])).prompts
    assert prompts[1][1] == {"role": "assistant", "content": "answer 1", "reasoning_content": "hm"}


@pytest.mark.parametrize("lines, message", [
    (["a\\", "b\\", "c"], "a\nb\nc"), (['"""', "a", "", 'b"""'], "a\n\nb"), (['"""a', "b", '"""'], "a\nb"), (['"""a b"""'], "a b"),
    ([" /etc is a folder"], "/etc is a folder"), (["\\", "x"], "\nx")])
def test_messages_of_several_lines(lines, message):
    assert said(talk(lines).prompts[0]) == [("user", message)]


@pytest.mark.parametrize("lines, message", [
    (['"""/usr', 'is a folder"""'], "/usr\nis a folder"), (['"""/exit"""'], "/exit"), (['""" /x"""'], " /x"),
    (["/usr\\", "is a folder"], "/usr\nis a folder")])
def test_text_of_several_lines_is_no_command_even_if_it_begins_with_a_slash(lines, message):
    assert said(talk([*lines, "/exit"]).prompts[0]) == [("user", message)]


@pytest.mark.parametrize("word", ["/exit", "/quit", "/bye"])
def test_every_usual_word_leaves(word):
    assert talk([word, "unreached"]).prompts == []


def test_instructions_can_be_cleared(capsys):
    assert said(talk(["/system -", "a"], system="be kind").prompts[0]) == [("user", "a")]
    assert "cleared" in capsys.readouterr().err


@pytest.mark.parametrize("template", [True, False])
@pytest.mark.parametrize("reason, words", [("cancelled", "your message is forgotten"), ("stop", "(the model ended without an answer)")])
def test_a_turn_without_an_answer_is_told_and_not_kept(capsys, template, reason, words):
    """Ctrl-C during the prompt; a model that ends at once."""
    speaker = FakeSpeaker(template, [{"finish_reason": reason, "text": "", "tokens": []}])
    prompts = talk(["a", "b"], speaker).prompts
    assert (said(prompts[1]) == [("user", "b")] if template else prompts[1] == ["b"]) and words in capsys.readouterr().err


def test_reasoning_that_was_cut_short_is_kept():
    speaker = FakeSpeaker(results=[{"finish_reason": "cancelled", "text": "", "reasoning": "hm"}])
    assert len(talk(["a", "b"], speaker).prompts[1]) == 3


def test_commands_are_never_sent(capsys):
    assert talk(["/help", "/rest", "/exit", "unreached"]).prompts == []
    err = capsys.readouterr().err
    assert "did you mean '/reset'?" in err and "/system [TEXT]" in err


def test_a_message_that_does_not_fit_is_not_remembered_and_the_way_out_is_named(capsys):
    full = ContextFull("context: 70 tokens do not fit into 64", "context-full")
    prompts = talk(["a", "long", "b"], FakeSpeaker(results=[{}, full])).prompts
    assert said(prompts[2]) == [("user", "a"), ("assistant", "answer 1"), ("user", "b")]
    err = capsys.readouterr().err
    assert "70 tokens do not fit into 64" in err and "/reset" in err and "--ctx 512" in err and "was not sent" in err


def test_an_answer_that_fills_the_context_says_how_to_go_on(capsys):
    talk(["a"], FakeSpeaker(results=[{"full": True, "finish_reason": "length"}]))
    assert "the context of 64 tokens is full" in capsys.readouterr().err


def test_an_answer_cut_by_max_tokens_says_so(capsys):
    talk(["a"], FakeSpeaker(results=[{"finish_reason": "length"}]))
    assert "--max-tokens" in capsys.readouterr().err


def test_a_template_that_refuses_does_not_end_the_chat(capsys):
    speaker = talk(["a", "b"], FakeSpeaker(results=[BadRequest("chat template: no", "template-refused")]))
    assert said(speaker.prompts[1]) == [("user", "b")] and "[template-refused]" in capsys.readouterr().err


def test_ctrl_c_at_the_prompt_keeps_the_conversation(capsys):
    prompts = talk(["a", KeyboardInterrupt(), "b"]).prompts
    assert len(prompts[1]) == 3 and "/exit" in capsys.readouterr().err


def test_a_stopped_answer_is_remembered_as_far_as_it_went():
    prompts = talk(["a", "b"], FakeSpeaker(results=[{"finish_reason": "cancelled", "text": "as far"}])).prompts
    assert said(prompts[1])[1] == ("assistant", "as far")


def test_without_a_template_the_text_goes_on(capsys):
    prompts = talk(["Once", "/system x", " upon", "/reset", "A"], FakeSpeaker(has_template=False)).prompts
    assert prompts == [["Once"], ["Once", 1, " upon"], ["A"]]
    err = capsys.readouterr().err
    assert "no chat template" in err and "have no place" in err


def test_a_real_terminal_with_ctrl_c_and_ctrl_d(qwen3_moe_file):
    """Chat, stop an endless answer, go on, leave."""
    master, slave = pty.openpty()
    owner = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"   # for Ctrl-C
    argv = [sys.executable, "-m", "moegg", "run", qwen3_moe_file, "--temp", "0", "--ctx", "40000", "--threads", "1"]
    child = subprocess.Popen([sys.executable, "-c", owner, *argv], stdin=slave, stdout=slave, stderr=slave,
                             env=os.environ | {"TERM": "dumb"}, start_new_session=True)
    os.close(slave)
    seen = b""

    def wait_for(pattern, timeout=60):
        nonlocal seen
        end = time.monotonic() + timeout
        while not re.search(pattern, seen, re.S):
            assert time.monotonic() < end, seen.decode(errors="replace")
            try:
                seen += os.read(master, 4096)
            except OSError:         # the other side is closed
                break
        found, seen = re.search(pattern, seen, re.S), b""
        assert found
    try:
        wait_for(b"Ctrl-D leaves.*> ")
        os.write(master, b"/help\n")
        wait_for(b"forget the conversation.*> ")
        os.write(master, b"Hello\n")
        wait_for(b"Hello\r\n.{20,}")
        os.write(master, b"\x03")
        wait_for(b"> ")
        os.write(master, b"\x04")
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
        os.close(master)


def test_ctrl_c_while_the_template_is_rendered_keeps_the_chat(capsys):
    """A long message, a second thought at once: the conversation before it was lost."""
    speaker = FakeSpeaker()
    real, count = speaker.chat_prompt, [0]

    def slow(messages):
        count[0] += 1
        if count[0] == 2:
            raise KeyboardInterrupt
        return real(messages)
    speaker.chat_prompt = slow
    talk(["one", "two", "three"], speaker)
    assert [[m["content"] for m in p] for p in speaker.prompts] == [["one"], ["one", "answer 1", "three"]]
    assert "your message is forgotten" in capsys.readouterr().err
