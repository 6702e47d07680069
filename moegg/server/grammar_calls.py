"""Grammars (llguidance's Lark) of answers that must be calls, in the notation that a family's model writes and tools.py reads.

Owns the shape of each family's calls. Where a family's own notation cannot be held to a schema (Python calls, GLM's pairs), it is
JSON between the family's markers, which its parser reads as well. Refuses nothing: every format has a shape.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from moegg.server import tools_families as families
from moegg.server import tools_harmony as harmony
from moegg.server import tools_solar as solar
from moegg.server import tools_tags as tags
from moegg.server.tools import ToolFormat

NAME, ARGUMENTS, PARAMETERS = "%name%", "%arguments%", "%parameters%"
HOLES = (NAME, ARGUMENTS, PARAMETERS)
OBJECT = f'{{"name": "{NAME}", "arguments": {ARGUMENTS}}}'
PROMPTED = OBJECT.replace('"arguments"', '"parameters"')      # as Llama and Gemma 3 are asked for it
# blank space in JSON has an end, as small models may not find one: none, a space, or line breaks and an indent
BLANK = {"x-guidance": {"whitespace_pattern": r"( |\n{1,2}[ \t]{0,20})?"}}


class Shape(NamedTuple):
    """call: of one call, with holes; around several: begin, between, end. between None: there is never more than one.

    parameter: what stands in front of a value (its name's hole filled) and behind it, where calls have %parameters%.
    """
    call: str
    begin: str = ""
    between: str | None = "\n"
    end: str = ""
    parameter: tuple[str, str] = (f"<parameter={NAME}>\n", "\n</parameter>\n")


TAGS = Shape(f"{tags.CALL}\n{OBJECT}\n{tags.CALL_END}")
_ALL, _BEGIN, _SEP, _END, _ALL_END = families.DEEPSEEK
_KIMI, _SOLAR = families.KIMI, families.SOLAR_CALLS
SHAPES = {
    "function": Shape(f"{tags.CALL}\n{tags.FUNCTION}{NAME}>\n{PARAMETERS}{tags.FUNCTION_END}\n{tags.CALL_END}"),
    "mistral": Shape(f"{families.MISTRAL}{NAME}{families.MISTRAL_ARGS}{ARGUMENTS}", between=""),
    "deepseek": Shape(f"{_BEGIN}{NAME}{_SEP}{ARGUMENTS}{_END}", _ALL, "", _ALL_END),
    "kimi": Shape(f"{_KIMI[1]}functions.{NAME}:0{_KIMI[2]}{ARGUMENTS}{_KIMI[3]}", _KIMI[0], "", _KIMI[4]),
    "minimax": Shape(f'{tags.MINIMAX}\n{tags.INVOKE}{NAME}">\n{PARAMETERS}{tags.INVOKE_END}\n{tags.MINIMAX_END}',
                     parameter=(f'<parameter name="{NAME}">', "</parameter>\n")),
    "solar": Shape(f"{_SOLAR[1]}0{_SOLAR[2]}{NAME}{families.SOLAR_ARGS}{ARGUMENTS}{_SOLAR[3]}", _SOLAR[0], "", _SOLAR[4]),
    "lfm": Shape(OBJECT, f"{families.LFM}[", ", ", f"]{families.LFM_END}"),
    "gemma": Shape(f"<|tool_call>call:{NAME}{ARGUMENTS}<tool_call|>", between=""),
    "python": Shape(OBJECT, f"{families.PYTHON_CALLS}\n[", ", ", f"]\n{families.PYTHON_CALLS_END}"),
    "apertus": Shape(f'{{"{NAME}": {ARGUMENTS}}}', f"{families.APERTUS}[", ", ", f"]{families.APERTUS_END}"),
    "glm4": Shape(f"{NAME}\n{ARGUMENTS}", between=None),
    "gemma3": Shape(PROMPTED, between=None),
    "llama": Shape(PROMPTED, between=None),
    "harmony": Shape(f"{harmony.CHANNEL}commentary to=functions.{NAME} <|constrain|>json{harmony.MESSAGE}{ARGUMENTS}", between=None)}
MARKED = {begin: Shape(OBJECT, f"{begin}[", ", ", f"]{end}") for begin, end in families.MARKED.items()}
MARKED["<|START_ACTION|>"] = MARKED["<|START_ACTION|>"]._replace(
    call=f'{{"tool_call_id": "0", "tool_name": "{NAME}", "parameters": {ARGUMENTS}}}')
# where reasoning is a message: what begins it, what stands between it and the next, and what begins the answer
THOUGHTS = {"harmony": (f"{harmony.CHANNEL}analysis{harmony.MESSAGE}", f"{harmony.ENDS[0]}{harmony.START}assistant",
                        f"{harmony.CHANNEL}final{harmony.MESSAGE}"),
            "solar": (solar.THINK, f"{solar.ENDS[0]}{solar.BEGIN}{solar.ANSWERER}", solar.CONTENT)}
# for templates that write the other of a family's two notations
OLDER = {"mistral": (families.MISTRAL_ARGS, Shape(OBJECT, f"{families.MISTRAL}[", ", ", "]")),
         "gemma": ("<|tool_call>", Shape(f"<start_function_call>call:{NAME}{ARGUMENTS}<end_function_call>", between=""))}


def calls(form: ToolFormat, template: str | None, functions: Sequence[Mapping[str, Any]], many: bool,
          special: Callable[[str], Sequence[tuple[int, int, int]]]) -> str:
    """A grammar of a call of one of `functions`, or of more if `many`. special(text): (start, stop, id) of special tokens in it."""
    shape = SHAPES.get(form.name, TAGS)
    if form.name == "marked":
        shape = next((MARKED[begin] for begin in MARKED if begin in (template or "")), MARKED["<|tool_call|>"])
    elif form.name in OLDER and template and OLDER[form.name][0] not in template:
        shape = OLDER[form.name][1]
    rules: list[str] = []
    one = " | ".join(_rule(rules, _call(rules, shape, f, special)) for f in functions)
    parts = [_text(shape.begin, special), "call", _text(shape.end, special)]
    if many and shape.between is not None:
        parts.insert(2, f"({_text(shape.between, special)} call)*")
    if form.name in THOUGHTS:
        parts.insert(0, "thought?")
        rules.append(_thought(form, special))
    return "\n".join([f"start: {' '.join(filter(None, parts))}", f"call: {one}", *rules, ""])


def final(form: ToolFormat, schema: Mapping[str, Any], special: Callable[[str], Sequence[tuple[int, int, int]]]) -> str:
    """A grammar of the last message of a format with reasoning of its own, holding JSON of a schema, maybe with reasoning before it."""
    return f"start: thought? {_text(THOUGHTS[form.name][2], special)} value\n{_thought(form, special)}\nvalue: {held(schema)}\n"


def _thought(form: ToolFormat, special: Callable[[str], Sequence[tuple[int, int, int]]]) -> str:
    """Rules of a message of reasoning and what stands behind it."""
    begin, end, _ = THOUGHTS[form.name]
    return f"thought: {_text(begin, special)} any {_text(end, special)}\nany: /(?s:.*)/"


def held(schema: Mapping[str, Any]) -> str:
    """JSON of a schema, as a rule's body."""
    return f"%json {json.dumps({**BLANK, **schema})}"


def _call(rules: list[str], shape: Shape, function: Mapping[str, Any], special: Callable) -> str:
    """What replaces `shape.call` for one function."""
    schema = function.get("parameters") or {"type": "object"}
    properties = schema.get("properties")
    if PARAMETERS in shape.call and not (isinstance(properties, dict) and properties):
        shape = TAGS                    # nothing to name: the parser reads JSON there too
    filled = {NAME: lambda: json.dumps(function["name"]), ARGUMENTS: lambda: _rule(rules, held(schema)),
              PARAMETERS: lambda: " ".join(_parameter(rules, name, schema, shape.parameter) for name in properties)}
    out, rest = [], shape.call
    while rest:
        hole = min((h for h in HOLES if h in rest), key=rest.index, default="")
        text, _, rest = rest.partition(hole) if hole else (rest, "", "")
        out += [_text(text, special), filled[hole]() if hole else ""]
    return " ".join(filter(None, out))


def _parameter(rules: list[str], name: str, schema: Mapping[str, Any], around: tuple[str, str]) -> str:
    """A parameter with its value: text for strings, JSON for other types; '?' behind it if it may be missing."""
    own, required = schema["properties"][name], schema.get("required")
    own = own if isinstance(own, dict) else {}
    kinds = own.get("type")
    choices = own.get("enum")
    close = around[1]
    if isinstance(choices, list) and choices and all(isinstance(c, str) for c in choices):
        value = f"({' | '.join(json.dumps(c) for c in choices)}) {json.dumps(close)}"
    elif kinds in (None, "string") and "$ref" not in own or isinstance(kinds, list) and "string" in kinds:
        value = f"value_{len(rules)}"
        rules.append(f"{value}[suffix={json.dumps(close)}]: /(?s:.*)/")
    else:
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        value = f"{_rule(rules, held({**own, **shared}))} {json.dumps(close)}"
    whole = _rule(rules, f"{json.dumps(around[0].replace(NAME, name))} {value}")
    return whole if isinstance(required, list) and name in required else whole + "?"


def _rule(rules: list[str], body: str) -> str:
    """A new rule's name."""
    name = f"r{len(rules)}"
    rules.append(f"{name}: {body}")
    return name


def _text(text: str, special: Callable[[str], Sequence[tuple[int, int, int]]]) -> str:
    """Literal text, its special tokens by their ids."""
    out, at = [], 0
    for start, stop, token in special(text):
        out += [json.dumps(text[at:start], ensure_ascii=False) if start > at else "", f"<[{token}]>"]
        at = stop
    return " ".join(filter(None, [*out, json.dumps(text[at:], ensure_ascii=False) if text[at:] else ""]))
