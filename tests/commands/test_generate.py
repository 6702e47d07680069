"""The loop behind `moegg run`: what is shown of which token, and how a signal ends it."""
import signal
import threading

import pytest

from moegg.commands.generate import Answer, Interrupt, Shown
from moegg.commands.output import Output, stats_line
from moegg.server.voice import Voice
from moegg.stream import StreamDecoder

TAGS = ("<think>", "</think>")


class Letters:
    """A tokenizer whose ids are bytes."""
    special_ids = frozenset()

    def token_bytes(self, token):
        return bytes([token])

    def stream(self, **options):
        return StreamDecoder(self.token_bytes)


def hear(text, *, tags=TAGS, think=True, **options):
    """Pushes the bytes of a text one by one; ([(kind, shown)...] joined per kind, reasoning, text)."""
    shown = {"text": "", "reasoning": ""}

    def show(kind, piece):
        shown[kind] += piece
    voice, out = Voice(Letters(), tags=tags, **options), Shown(show, think)
    for byte in text.encode():
        out.add(voice.push(byte))
        if voice.ended:
            break
    out.add(voice.finish())
    return shown, "".join(out.reasoning), "".join(out.text)


def test_reasoning_and_answer_part_even_when_tags_come_in_pieces():
    """E1."""
    shown, reasoning, text = hear("<think>why é</think>\n\nso 空")
    assert (reasoning, text) == ("why é", "so 空") and shown == {"reasoning": "why é", "text": "so 空"}


def test_a_prompt_that_opened_the_reasoning_and_an_answer_cut_inside_it():
    """E5."""
    assert hear("still thinking", thinking=True)[1:] == ("still thinking", "")


def test_nothink_shows_no_reasoning_but_the_answer():
    shown, reasoning, text = hear("<think>psst</think>yes", think=False)
    assert shown == {"reasoning": "", "text": "yes"} and reasoning == "psst"


def test_stop_strings_end_the_answer_not_the_reasoning():
    """D1, D2: and nothing of the stop is shown."""
    assert hear("<think>STOP it</think>go STO STOP on", stops=("STOP",))[1:] == ("STOP it", "go STO ")
    assert hear("ends in ST", stops=("STOP",), tags=None)[2] == "ends in ST"


def test_the_first_ctrl_c_asks_the_second_insists():
    stopped = []
    before = signal.getsignal(signal.SIGINT)
    with Interrupt(lambda: stopped.append(1)) as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert interrupt.hit and stopped == [1]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_interrupts_outside_the_main_thread_leave_the_handler_alone():
    def inside():
        with Interrupt(lambda: None) as interrupt:
            results.append(interrupt.hit)
    results = []
    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    assert results == [False]


def test_text_ends_with_a_line_break_and_reasoning_stays_off_stdout(capsys):
    output = Output()
    for kind, text in (("reasoning", "hm"), ("text", "a"), ("text", "b")):
        output.show(kind, text)
    output.end()
    output.end()
    assert capsys.readouterr() == ("ab\n", "hm\n")


def test_statistics_of_an_answer_without_tokens():
    assert stats_line(Answer(3, 1)) == "no token was generated"
