"""The chat on a terminal: reads messages and commands, keeps the conversation, says what to do when the context is full.

Knows nothing of engines: `Speaker` (moegg/commands/generate.py) answers. Refuses to lose the conversation to a Ctrl-C.
"""
import sys
from collections.abc import Callable
from typing import Any

from moegg.commands.generate import Answer, Prompt, Speaker
from moegg.commands.options import did_you_mean
from moegg.commands.output import ENDED_SILENT, Output, silent, stats_line
from moegg.errors import BadRequest, ContextFull, ExitStatus, printable

HELP = """\
  /reset            forget the conversation (so does /clear)
  /system [TEXT]    set instructions and forget the conversation; '-' clears, without TEXT show them
  /help             this text
  /exit             leave (so do /quit, /bye and Ctrl-D)
Ctrl-C stops an answer. A line that ends with \\ goes on in the next; \"\"\" begins and ends a message of several lines.
Put a space before a message of one line that begins with /."""
FORGOTTEN = "\n(stopped before the answer began; your message is forgotten)"
LEAVE, RESET = ("/exit", "/quit", "/bye"), ("/reset", "/clear")
COMMANDS = (*RESET, "/system", "/help", *LEAVE)


def read_line(prompt: str) -> str:
    """One line from the terminal, with history and editing where the platform has readline."""
    if sys.stdout.isatty():
        return input(prompt)
    sys.stderr.write(prompt)        # stdout carries the answers, into a file
    sys.stderr.flush()
    return input()


class Chat:
    """One conversation. `read(prompt)` returns a line, or raises EOFError or KeyboardInterrupt, as input() does."""

    def __init__(self, speaker: Speaker, output: Output, system: str | None, stats: bool, read: Callable[[str], str] = read_line):
        self._speaker, self._output, self._system, self._stats, self._read = speaker, output, system, stats, read
        self._messages: list[dict[str, Any]] = []
        self._ids: list[int] = []           # without a template: everything that was said, as tokens

    def loop(self, name: str) -> ExitStatus:
        """Talks until /exit or the end of input."""
        try:
            import readline  # noqa: F401  importing it gives input() history and editing; not every platform has it
        except ImportError:
            pass
        self._say(f"{printable(name)}, context {self._speaker.engine.ctx} tokens. /help lists commands, Ctrl-D leaves.")
        if not self._speaker.has_template:
            self._say("The file has no chat template: the model continues your text.")
        while True:
            try:
                text, command = self._message()
            except EOFError:
                self._say("")
                return ExitStatus.OK
            except KeyboardInterrupt:
                self._say("\n(/exit or Ctrl-D leaves)")
                continue
            if command:
                if self._command(text):
                    return ExitStatus.OK
            elif text.strip() or not self._speaker.has_template and text:
                self._answer(text)

    def _message(self) -> tuple[str, bool]:
        """(text, is a command): only a single line can be one; text of several lines may begin with anything."""
        line = self._read("> ")
        if line.strip().startswith('"""'):
            return self._block(line.strip()[3:]), False
        if not line.endswith("\\"):
            return line.removeprefix(" ") if line.startswith(" /") else line, line.startswith("/")
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._read(". "))
        return "\n".join(lines), False

    def _block(self, first: str) -> str:
        lines = [first] if first else []
        while not (lines and lines[-1].rstrip().endswith('"""')):
            lines.append(self._read(". "))
        lines[-1] = lines[-1].rstrip()[:-3]
        return "\n".join(lines).removesuffix("\n")

    def _command(self, text: str) -> bool:
        """Obeys; true if the chat is over."""
        name, _, rest = text.strip().partition(" ")
        if name in LEAVE:
            return True
        if name in ("/help", "/?"):
            self._say(HELP)
        elif name in RESET:
            self._forget("The conversation is forgotten.")
        elif name == "/system" and not rest.strip():
            self._say(self._system or "(no instructions)")
        elif name == "/system" and not self._speaker.has_template:
            self._say("The file has no chat template, so instructions have no place.")
        elif name == "/system":
            self._system = None if rest.strip() == "-" else rest.strip()
            self._forget(f"Instructions are {'set' if self._system else 'cleared'}; the conversation is forgotten.")
        else:
            self._say(f"unknown command '{name}'{did_you_mean(name, list(COMMANDS))} (/help; put a space before it to send it)")
        return False

    def _forget(self, text: str) -> None:
        self._messages, self._ids = [], []
        self._say(text)

    def _answer(self, text: str) -> None:
        messages = [*self._messages, {"role": "user", "content": text}]
        try:
            try:
                prompt = self._prompt(text, messages)
            except KeyboardInterrupt:       # while the template was rendered, which takes a moment the first time
                self._say(FORGOTTEN)
                return
            answer = self._converse(prompt, messages)
        except (ContextFull, BadRequest) as e:      # a prompt too long; roles that a template refuses; a token the model does not know
            self._output.end()
            self._say(f"{e}\nYour message was not sent. {self._way_out() if isinstance(e, ContextFull) else ''}")
            return
        self._output.end()
        if answer.full:
            self._say(f"(the context of {self._speaker.engine.ctx} tokens is full, so the answer stops here. {self._way_out()})")
        elif answer.finish_reason == "length":
            self._say(f"(stopped after {len(answer.tokens)} tokens; start with --max-tokens for longer answers)")
        elif answer.finish_reason == "cancelled":
            self._say("(stopped)" if self._counts(answer) else FORGOTTEN)
        elif silent(answer):
            self._say(ENDED_SILENT)
        if self._stats:
            self._say(stats_line(answer))

    def _prompt(self, text: str, messages: list[dict[str, Any]]) -> Prompt:
        if not self._speaker.has_template:
            return self._speaker.raw_prompt(text, self._ids)
        return self._speaker.chat_prompt(([{"role": "system", "content": self._system}] if self._system else []) + messages)

    def _converse(self, prompt: Prompt, messages: list[dict[str, Any]]) -> Answer:
        """Nothing is remembered of a message that could not be sent, or that nothing was answered to."""
        answer = self._speaker.speak(prompt)
        if self._counts(answer):
            self._ids = prompt.ids + answer.tokens
            reply = {"role": "assistant", "content": answer.text} | ({"reasoning_content": answer.reasoning} if answer.reasoning else {})
            self._messages = [*messages, reply]
        return answer

    def _counts(self, answer: Answer) -> bool:
        """Something was said: tokens to go on from, an answer, or reasoning that was cut short."""
        if not self._speaker.has_template:
            return bool(answer.tokens)
        return bool(answer.text.strip() or answer.reasoning and answer.finish_reason != "stop")

    def _way_out(self) -> str:
        trained, ctx = self._speaker.engine.model.ctx_train, self._speaker.engine.ctx
        return "/reset starts anew" + (f"; a start with --ctx {trained} holds more" if trained > ctx else "") + "."

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr)
