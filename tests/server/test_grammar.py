"""Forced output: whatever the model prefers, what comes out is what was asked for, and its family's parser reads it."""
import json

import numpy as np
import pytest

from moegg.server import tools
from moegg.server.ask import Ask
from moegg.server.grammar import Grammars
from moegg.server.grammar_calls import calls
from moegg.server.problem import Problem
from tests.server.scripted import TEMPLATE, VOCAB

pytest.importorskip("llguidance")

WEATHER = {"name": "weather", "parameters": {
    "type": "object", "required": ["days", "unit", "place"], "additionalProperties": False, "properties": {
        "days": {"type": "integer", "minimum": 0, "maximum": 99}, "unit": {"enum": ["C", "F"]}, "place": {"type": "string", "maxLength": 9},
        "wind": {"type": "boolean"}, "at": {"$ref": "#/$defs/Spot"}}, "$defs": {"Spot": {"type": "object", "required": ["x"], "properties": {
            "x": {"enum": [1, 2]}}, "additionalProperties": False}}}}
NOTHING = {"name": "stop.all", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
TOOLS = tuple({"type": "function", "function": f} for f in (WEATHER, NOTHING))
FORMS = [f for f in tools.FORMATS if f is not tools.NONE]


WAYS_OUT = ("\n</parameter>\n", '"')      # of free text


def random_walk(tokenizer, constraint, seed):
    """The text of a model whose likes are random, which does not think aloud, and after 40 tokens wants out of free text."""
    rng, ids, said = np.random.default_rng(seed), [], 0
    silent = [i for i in range(VOCAB) if tokenizer.token_bytes(i)[:1] in (b"c", b"f")]
    way_out = [tokenizer.encode(text) for text in WAYS_OUT]
    while not constraint.finished:
        assert len(ids) < 600, tokenizer.decode(ids)
        likes = rng.normal(size=VOCAB).astype(np.float32)
        likes[list(tokenizer.eos_ids)] = len(ids) / 10
        likes[silent] += 9
        out = way_out[len(ids) // 40 % 2]
        if len(ids) > 40:
            likes[out[said % len(out)]] = 100
        allowed = constraint.mask(likes)
        token = int(np.argmax(allowed))
        assert allowed[token] > -np.inf
        if token in tokenizer.eos_ids:
            break
        said = said + 1 if token == out[said % len(out)] else 0
        constraint.accept(token)
        ids.append(token)
    return b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")


def check(call):
    arguments = json.loads(call.arguments)
    if call.name == "stop.all":
        return arguments == {}
    return (set(arguments) >= {"days", "unit", "place"} and set(arguments) <= set(WEATHER["parameters"]["properties"])
            and type(arguments["days"]) is int and arguments["unit"] in ("C", "F") and isinstance(arguments["place"], str)
            and type(arguments.get("wind", True)) is bool and arguments.get("at", {"x": 1})["x"] in (1, 2))


@pytest.mark.parametrize("form", FORMS, ids=[f.name for f in FORMS])
@pytest.mark.parametrize("choice, many", [("required", True), ("required", False), (("function", "weather"), True)])
def test_a_forced_call_is_one_in_every_familys_notation(tokenizer, form, choice, many):
    grammars = Grammars(tokenizer, VOCAB)
    ask = Ask(tools=TOOLS, tool_choice=choice, parallel_calls=many)
    for seed in range(3):
        text = random_walk(tokenizer, grammars.start(ask, form, TEMPLATE), seed)
        message = form.message(text, TOOLS)
        assert message.calls and all(map(check, message.calls)) and message.content == "", (text, message)
        assert many and choice == "required" or len(message.calls) == 1, text
        assert choice == "required" or message.calls[0].name == "weather", text


@pytest.mark.parametrize("name, written, opening", [("mistral", "[ARGS]", "[TOOL_CALLS]weather[ARGS]{"), ("mistral", "", '[TOOL_CALLS][{"name"'),
                                                    ("gemma", "<|tool_call>", "<|tool_call>call:weather{"),
                                                    ("gemma", "", "<start_function_call>call:weather{")])
def test_of_two_notations_the_templates_is_forced(tokenizer, name, written, opening):
    form = next(f for f in FORMS if f.name == name)
    ask = Ask(tools=TOOLS, tool_choice=("function", "weather"))
    text = random_walk(tokenizer, Grammars(tokenizer, VOCAB).start(ask, form, written + TEMPLATE), 1)
    assert text.startswith(opening) and check(form.message(text, TOOLS).calls[0])


def test_markers_that_are_special_tokens_are_forced_as_tokens():
    grammar = calls(tools.TAGS, None, [NOTHING], False, lambda text: [(0, 11, 77)] if text.startswith("<tool_call>") else [])
    assert 'r1: <[77]> "\\n{' in grammar and '"}\\n</tool_call>"' in grammar


def test_a_schema_is_held_inside_the_last_message_of_a_family_that_marks_all_parts(tokenizer):
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "maximum": 9, "minimum": 0}},
              "additionalProperties": False}
    text = random_walk(tokenizer, Grammars(tokenizer, VOCAB).start(Ask(constraint=("schema", schema)), tools.HARMONY, TEMPLATE), 2)
    assert 0 <= json.loads(tools.HARMONY.message(text, None).content)["n"] <= 9


def test_a_tool_without_named_parameters_takes_any_object(tokenizer):
    free = {"type": "function", "function": {"name": "free", "parameters": {"type": "object"}}}
    text = random_walk(tokenizer, Grammars(tokenizer, VOCAB).start(Ask(tools=(free,), tool_choice="required"), tools.FUNCTION, None), 3)
    assert tools.FUNCTION.message(text, (free,)).calls[0].name == "free"


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
                                    {"enum": []}, {"type": "integer", "minimum": 5, "maximum": 4}, {"$ref": "#/nowhere"},
                                    {"$ref": "http://127.0.0.1:1/x"}, {"type": "string", "pattern": "(a"}, {"type": "no"}])
def test_a_schema_that_nothing_satisfies_is_a_400_before_the_answer(serve, schema):
    """A schema that refers to itself alone allowed no token at all, which was reported as a fault of the model."""
    with serve("hello") as s:
        status, r = s.client.chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}, stream=True)
        assert status == 400 and r["error"]["code"] == "invalid_schema" and r["error"]["param"] == "response_format"
        assert not s.engine.passes and s.client.chat()[0] == 200
        assert not any(inside in r["error"]["message"] for inside in ("<state>", "<backtrace>", "%json", "start:"))


def test_several_answers_share_the_work_of_one_schema(serve, monkeypatch):
    """It was done again for each: 40 s for 36 answers of an object with many properties."""
    made = []
    make = Grammars._make
    monkeypatch.setattr(Grammars, "_make", lambda self, *given: made.append(1) or make(self, *given))
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    with serve("hello") as s:
        r = s.client.chat(n=4, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})[1]
    assert len(made) == 1 and all(json.loads(c["message"]["content"])["a"] in (1, 2) for c in r["choices"])


def test_a_grammar_beyond_the_librarys_limits_is_a_400_without_its_insides(tokenizer):
    rules = "\n".join(f'r{i}: "a{i}" "b"' for i in range(40_000))
    with pytest.raises(Problem, match="^tool_choice: the schema is too large$"):
        Grammars(tokenizer, VOCAB)._make(f"start: {' | '.join(f'r{i}' for i in range(40_000))}\n{rules}\n", "tool_choice")
