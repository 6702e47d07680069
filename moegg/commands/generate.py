"""From prompt ids to a streamed answer: the loop around one session that `moegg run` and its chat share.

Owns: when an answer ends and why, what of it is shown, how Ctrl-C stops it, the numbers of --stats. The loop runs in one thread of
its own, so that the main thread is free to take the signal and stop the executor between two ops.
Refuses: choosing what the prompt is (run.py, chat_repl.py).
"""
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from moegg.commands.progress import bar
from moegg.engine import Engine
from moegg.errors import Cancelled
from moegg.io.memory import peak_bytes
from moegg.sampler import Sampler, SamplingParams, TokenLogprobs, logprobs
from moegg.server.ask import Event, Text
from moegg.server.talk import REASONING_SWITCHES, Talk

PREFILL_BAR_AFTER_S = 1.0


@dataclass(frozen=True)
class Settings:
    """What the command line chose. logprobs None: none, else the number of alternatives."""
    sampling: SamplingParams
    raw_specials: bool = False
    think: bool = True
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True)
class Prompt:
    """ids of a prompt. thinking: it ends inside an open reasoning block."""
    ids: list[int]
    thinking: bool = False


@dataclass
class Answer:
    """finish_reason: stop, length or cancelled; full: it is the context that ended it. tokens do not hold the id that stopped."""
    prompt_tokens: int
    seed: int
    text: str = ""
    reasoning: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str = ""
    full: bool = False
    stats: dict[str, Any] = field(default_factory=dict)


class Speaker:
    """A model that answers: engine, talk and settings around one session, which keeps what successive prompts share.

    Without a template in `talk` text is continued. show(kind, text) is called with kind 'text' or 'reasoning' as the answer grows.
    """

    def __init__(self, engine: Engine, talk: Talk, settings: Settings, show: Callable[[str, str], None]):
        self.engine, self.talk, self.tokenizer, self.settings, self._show = engine, talk, talk.tokenizer, settings, show
        self._session = engine.session()
        self._thread = ThreadPoolExecutor(1)
        self._template = talk.template()
        self._ends = talk.ends(self._template)

    # --- prompts --------------------------------------------------------------------------------------------------------

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def chat_prompt(self, messages: Sequence[dict[str, Any]]) -> Prompt:
        """Messages through the chat template. Raises BadRequest."""
        variables = {} if self.settings.think else dict.fromkeys(REASONING_SWITCHES, False)
        return Prompt(*self.talk.prompt(self._template or "", messages, variables=variables, ctx=self.engine.ctx))

    def raw_prompt(self, text: str, before: Sequence[int] = ()) -> Prompt:
        """Text to be continued, after the ids of what was said before."""
        self.tokenizer.check_length(len(text), self.engine.ctx)
        ids = self.tokenizer.encode(text, special=self.settings.raw_specials, add_bos=not before)
        return Prompt([*before, *ids])

    # --- answers --------------------------------------------------------------------------------------------------------

    def speak(self, prompt: Prompt) -> Answer:
        """Answers; Ctrl-C ends the answer with finish_reason 'cancelled', a second one raises KeyboardInterrupt.

        Raises ContextFull if the prompt does not fit, BadRequest for an empty one.
        """
        with Interrupt(self.engine.cancel) as interrupt:
            return self._thread.submit(self._speak, prompt, interrupt).result()

    def _speak(self, prompt: Prompt, interrupt: "Interrupt") -> Answer:
        sampler = Sampler(self.settings.sampling)
        answer = Answer(len(prompt.ids), sampler.seed)
        voice = self.talk.voice(self._template, thinking=prompt.thinking, stops=self.settings.stop)
        shown = Shown(self._show, self.settings.think)
        start = time.perf_counter()
        first = start
        try:
            with bar("prompt", "tokens", PREFILL_BAR_AFTER_S) as progress:
                synced = self._session.sync(prompt.ids, progress, lambda: interrupt.hit)
            prefilled = time.perf_counter()
            while not answer.finish_reason:
                logits = self._session.logits
                token = sampler.sample(logits, self._session.tokens, len(prompt.ids))
                first = first if answer.tokens else time.perf_counter()
                if token in self._ends:
                    answer.finish_reason = "stop"
                    break
                answer.tokens.append(token)
                if self.settings.logprobs is not None:
                    answer.logprobs.append(logprobs(logits, token, self.settings.logprobs))
                shown.add(voice.push(token))
                if voice.ended:
                    answer.finish_reason = "stop"
                elif interrupt.hit:
                    answer.finish_reason = "cancelled"
                elif len(answer.tokens) == self.settings.max_tokens:
                    answer.finish_reason = "length"
                elif len(self._session) >= self.engine.ctx:
                    answer.finish_reason, answer.full = "length", True
                else:
                    self._session.eval(token)
        except Cancelled:
            answer.finish_reason = "cancelled"
        shown.add(voice.finish())
        answer.text, answer.reasoning = "".join(shown.text), "".join(shown.reasoning)
        if answer.tokens:
            answer.stats = _stats(synced, answer, start, prefilled, first, time.perf_counter())
            if self.engine.plan.experts:
                answer.stats[f"{self.engine.store.noun}s"] = self.engine.store.counters()
        return answer


def _stats(synced: Any, answer: Answer, start: float, prefilled: float, first: float, end: float) -> dict[str, Any]:
    """Rates are of what was really evaluated: reused prompt tokens do not count, nor does the first answer token."""
    decoded = len(answer.tokens) - 1
    return {"prompt_tokens": answer.prompt_tokens, "prompt_reused": synced.reused, "completion_tokens": len(answer.tokens),
            "prompt_tok_per_s": synced.evaluated / max(prefilled - start, 1e-9),
            "decode_tok_per_s": decoded / max(end - first, 1e-9) if decoded else None,
            "first_token_s": first - start, "peak_memory_bytes": peak_bytes()}


class Shown:
    """Collects a voice's events, and shows them; reasoning only if `think`."""

    def __init__(self, show: Callable[[str, str], None], think: bool = True):
        self._show, self._think = show, think
        self.text: list[str] = []
        self.reasoning: list[str] = []

    def add(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Text):
                kind = "text" if event.kind == "content" else "reasoning"
                (self.text if kind == "text" else self.reasoning).append(event.text)
                if kind == "text" or self._think:
                    self._show(kind, event.text)


class Interrupt:
    """While active, Ctrl-C sets `hit` and calls `stop`; the second one raises KeyboardInterrupt as usual."""

    def __init__(self, stop: Callable[[], None]):
        self.hit = False
        self._stop = stop

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():       # elsewhere Python allows no handlers
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, signum: int, frame: Any) -> None:
        again, self.hit = self.hit, True
        self._stop()
        if again:
            raise KeyboardInterrupt
