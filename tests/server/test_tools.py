"""Tool calls in model text: every family's notation, broken text, types by schema; streaming equals parsing the whole."""
import json
import random
import re

import pytest

from moegg.server import tools as T
from moegg.server.tools import Arguments, CallEnd, CallStart, Content, Reasoning, collect, parser_for

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}, "limit": {"type": "number"},
        "tags": {"type": "array", "items": {"type": "string"}}, "where": {"$ref": "#/$defs/Place"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "level": {"enum": [1, 2, 3]}, "free": {}},
    "$defs": {"Place": {"type": "object", "properties": {"lat": {"type": "number"}}}}}}}
TOOLS = [WEATHER, {"type": "function", "name": "ls", "parameters": {"type": "object", "properties": {"p": {"type": "string"}}}},
         {"name": "run", "input_schema": {"type": "object", "properties": {"cmd": {"type": "string"}}}}]
CALLING = [form for form in T.FORMATS if form is not T.NONE]
DS_ALL, DS, SEP, DS_END, DS_ALL_END = (
    f"<｜tool▁{word}｜>" for word in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end"))
K_ALL, K, K_ARGS, K_END, K_ALL_END = (
    f"<|tool_{word}|>" for word in ("calls_section_begin", "call_begin", "call_argument_begin", "call_end", "calls_section_end"))
LS, ROOT = ("ls", {}), ("ls", {"p": "/"})
OSLO = ("weather", {"city": "Oslo"})
BERGEN = ("weather", {"city": "Bergen", "days": 2})

# (format, text, content, [(name, arguments)]): what each family writes
EXAMPLES = [
    ("tags", '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>', "", [OSLO]),
    ("tags", 'Let me look.\n\n<tool_call>{"name": "weather", "parameters": {"city": "Oslo"}}</tool_call>\n<tool_call>'
     '{"name": "weather", "arguments": {"city": "Bergen", "days": 2}}</tool_call>\nDone.', "Let me look.\n\n\nDone.",
     [OSLO, BERGEN]),
    ("tags",
     '<tool_call>{"name": "ls", "arguments": {}}\n{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>',
     "", [LS, OSLO]),
    ("tags", '<tool_call>{"type": "function", "function": {"name": "ls", "arguments": {"p": "/"}}}</tool_call>', "", [ROOT]),
    ("tags", '<tool_call>{"name": "ls"}</tool_call>', "", [LS]),
    ("tags", "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>", "", [OSLO]),
    ("tags", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bergen</arg_value>\n<arg_key>days</arg_key>\n<arg_value>2"
     "</arg_value>\n</tool_call>", "", [BERGEN]),
    ("tags", "<tool_call>ls</tool_call>", "", [LS]),
    ("function",
     "First.\n<tool_call>\n<function=weather>\n<parameter=city>\nBergen\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
     "</function>\n</tool_call>\n<tool_call>\n<function=ls>\n</function>\n</tool_call>", "First.", [BERGEN, LS]),
    ("function", "<function=run>\n<parameter=cmd>\ncat <<E\n\nhi\n\n</parameter>\n</function>\n</tool_call>", "",
     [("run", {"cmd": "cat <<E\n\nhi\n"})]),
    ("mistral", '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Oslo"}, "id": "abc123def"}]', "", [OSLO]),
    ("mistral", '[TOOL_CALLS][{"name": "ls", "arguments": {}}, {"name": "weather", "arguments": {"city": "Oslo"}}]', "",
     [LS, OSLO]),
    ("mistral", 'Hm.[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]ls[CALL_ID]abc123def[ARGS]{}', "Hm.", [OSLO, LS]),
    ("mistral", '[TOOL_CALLS]ls{"p": "[ARGS]"}', "", [("ls", {"p": "[ARGS]"})]),
    ("deepseek", f'{DS_ALL}{DS}weather{SEP}{{"city": "Oslo"}}{DS_END}{DS}ls{SEP}{{}}{DS_END}{DS_ALL_END}', "", [OSLO, LS]),
    ("deepseek", f'So:{DS_ALL}{DS}function{SEP}weather\n```json\n{{"city": "Oslo"}}\n```{DS_END}{DS_ALL_END}', "So:", [OSLO]),
    ("deepseek", f'{DS}ls{SEP}{{"p": "/"}}{DS_END}', "", [ROOT]),
    ("kimi", f'{K_ALL}{K}functions.weather:0{K_ARGS}{{"city": "Oslo"}}{K_END}{K}functions.ls:1{K_ARGS}{{}}{K_END}{K_ALL_END}', "", [OSLO, LS]),
    ("kimi", f'Well.{K_ALL}\n{K}\nweather:7 {K_ARGS} {{"city": "Oslo"}}{K_END}\n{K_ALL_END}', "Well.", [OSLO]),
    ("kimi", f'{K}functions.ls{K_ARGS}{{"p": "/"}}', "", [("functions.ls", {"p": "/"})]),
    ("minimax", '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Bergen</parameter>\n<parameter name="days">2</parameter>\n'
     '</invoke>\n<invoke name="ls">\n</invoke>\n</minimax:tool_call>', "", [BERGEN, LS]),
    ("minimax", 'So.\n<minimax:tool_call><invoke name="run"><parameter name="cmd">echo "</parameter>"\n</parameter></invoke></minimax:tool_call>',
     "So.", [("run", {"cmd": 'echo "</parameter>"\n'})]),
    ("minimax", '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo\n<parameter name="days">2</invoke>\n', "",
     [("weather", {"city": "Oslo\n", "days": 2})]),
    ("marked", '<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}, {"name": "ls", "arguments": {}}]', "", [OSLO, LS]),
    ("marked", '<|tool_call|>[{"name": "ls", "arguments": {"p": "/"}}]<|/tool_call|>', "", [ROOT]),
    ("marked", 'Hm.\n<tool_calls>[\n{"name": "ls", "arguments": {}},\n{"name": "weather", "arguments": {"city": "Oslo"}}\n]</tool_calls>', "Hm.",
     [LS, OSLO]),
    ("marked", '<tool_calls>\n{"name": "ls", "arguments": {}}\n{"name": "ls", "arguments": {"p": "/"}}\n</tool_calls>', "", [LS, ROOT]),
    ("marked", '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}}\n]<|END_ACTION|>', "", [OSLO]),
    ("marked", '<|action_start|><|plugin|>\n{"name": "ls", "parameters": {}}<|action_end|>', "", [LS]),
    ("tags", '<|tool_call|>[{"name": "ls", "arguments": {}}]<|/tool_call|>', "", [LS]),
    ("llama", '<|python_start|>[weather(city="Oslo"), ls(p="/")]<|python_end|>', "", [OSLO, ROOT]),
    ("lfm", "<|tool_call_start|>[weather(city='Oslo'), weather(city=\"Bergen\", days=2)]<|tool_call_end|>Wait.", "Wait.",
     [OSLO, BERGEN]),
    ("lfm", "<|tool_call_start|>[run(cmd='it's 'so'')]<|tool_call_end|>", "", [("run", {"cmd": "it's 'so'"})]),
    ("lfm", "<|tool_call_start|>[weather(city='a', tags=['x', \"y\"], where={'lat': 1.50, \"on\": None}, metric=True)]", "",
     [("weather", {"city": "a", "tags": ["x", "y"], "where": {"lat": 1.5, "on": None}, "metric": True})]),
    ("lfm", '<|tool_call_start|>[{"name": "ls", "arguments": {}}]<|tool_call_end|>', "", [LS]),
    ("gemma", '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}<tool_call|><|tool_call>call:weather{city:<|"|>Bergen<|"|>,days:2}'
     "<tool_call|>", "", [OSLO, BERGEN]),
    ("gemma", '<|tool_call>call:weather{city:Oslo,free:{<|"|>a b<|"|>:[true,new york,"q"],n:null,e:},metric:false}<tool_call|>',
     "", [("weather", {"city": "Oslo", "free": {"a b": [True, "new york", "q"], "n": None, "e": None}, "metric": False})]),
    ("gemma", "<start_function_call>call:run{cmd:<escape>{a,b}: \\n<escape>}<end_function_call>", "",
     [("run", {"cmd": "{a,b}: \\n"})]),
    ("gemma3", 'Sure.\n```tool_code\nprint(weather(city="Oslo"))\nls()\n```\n', "Sure.", [OSLO, LS]),
    ("gemma3", '```json\n{"name": "weather", "parameters": {"city": "Oslo"}}\n```', "", [OSLO]),
    ("gemma3", '[weather(city="Oslo"), ls(p="/")]', "", [OSLO, ROOT]),
    ("function", "<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n</function>\n</seed:tool_call>", "", [OSLO]),
    ("python", "Let me see.\n<function_calls>\nweather(city=\"Oslo\")\nweather(city='Bergen', days=2)\n</function_calls>",
     "Let me see.", [OSLO, BERGEN]),
    ("python", "<function_calls>ls()</function_calls>", "", [LS]),
    ("apertus", 'Wait.<|tools_prefix|>[{"weather": {"city": "Bergen", "days": 2}}, {"ls": {}}]<|tools_suffix|>', "Wait.", [BERGEN, LS]),
    ("apertus", '<|tools_prefix|>[{"weather": "{\\"city\\": \\"Oslo\\"}"}]', "", [OSLO]),
    ("glm4", 'weather\n{"city": "Oslo"}', "", [OSLO]), ("glm4", '\nls\r\n {"p": "/"}\nSo.', "So.", [ROOT]),
    ("llama", '{"name": "weather", "parameters": {"city": "Oslo"}}', "", [OSLO]),
    ("llama", ' {"type": "function", "name": "ls", "parameters": {}}; {"name": "weather", "parameters": {"city": "Oslo"}}', "",
     [LS, OSLO]),
    ("llama", '<|python_tag|>{"name": "weather", "parameters": {"city": "Bergen", "days": "2"}}', "", [BERGEN]),
    ("llama", '[{"name": "ls", "parameters": {}}]', "", [LS]),
    ("harmony", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
     '<|constrain|>json<|message|>{"city": "Oslo"}<|call|>', "", [OSLO]),
    ("harmony",
     "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.ls<|channel|>commentary json<|message|>"
     "{}", "I look.", [LS]),
    ("harmony", '<|start|>assistant<|channel|>analysis to=functions.weatherjson code<|message|>{"city":"Oslo"}<|return|>', "",
     [OSLO]),
    ("harmony", ' to=functions.weather<|channel|>commentary json<|message|>{"city":"Oslo"}<|call|>', "", [OSLO]),
    ("harmony", "<|channel|>commentary<|message|>One.<|end|><|start|>assistant<|channel|>final<|message|>Two.<|return|>",
     "One.\n\nTwo.", []),
    ("solar", '<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>weather<|tool_call:args|>{"city": "Oslo"}'
     "<|tool_call:end|><|tool_call:begin|>a2<|tool_call:name|>ls<|tool_call:args|>{}<|tool_call:end|><|calls|>", "", [OSLO, LS]),
    ("solar", "<|content|>I look.<|flush|><|tool_calls|><|tool_call:begin|><|tool_call:name|>ls<|tool_call:args|>{}", "I look.", [LS]),
    ("solar", "<|begin|>assistant<|content|>One.<|end|><|begin|>assistant<|content|>Two.<|flush|>", "One.\n\nTwo.", []),
]
# what looks like calls and is none, or is broken: all of it stays content
TEXTS = {
    "none": ['<tool_call>{"name": "ls", "arguments": {}}</tool_call>'],
    "tags": [
        "Use <tool_call> tags, as in </tool_call>.", "a < b <tool_cal", "<tool_call>[]</tool_call>", "<tool_call>{}</tool_call>",
        '<tool_call>{"name": "ls", "arguments": {"p": "half',
        '<tool_call>{"name": "ls", "arguments": {"p": "a" "b"}}</tool_call>',
        '<tool_call>{"name": "l s", "arguments": {}}</tool_call>', '<tool_call>{"name": "ls", "arguments": 5}</tool_call>',
        '<tool_call>{"name": 7}</tool_call>', "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Os",
        "<tool_call>\n<function=weather>", "<tool_call>" + '{"a":' * 200],
    "function": [
        "<function=>\n<parameter=a>1</parameter></function>", "<function=l s></function>",
        "<function=run>\n<parameter=cmd>\nrm -rf /home", "<function=weather>\n<parameter=days>\n2\n</parameter>\n"],
    "mistral": ["[TOOL_CALLS]nothing here", '[TOOL_CALLS][{"name": "ls", "argum', '[TOOL_CALLS]ls[ARGS]{"p": '],
    "deepseek": [f"{DS_ALL}{DS}ls{SEP}{{", f"{DS_ALL} {DS_ALL_END}"],
    "kimi": [f"{K_ALL}{K_ALL_END}", f'{K_ALL}{K}functions.ls:0{K_ARGS}{{"p": ', f"{K}functions.ls:0{K_ARGS}ls{K_END}"],
    "minimax": ['<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Os', "<minimax:tool_call></minimax:tool_call>",
                '<minimax:tool_call><invoke name="l s"></invoke></minimax:tool_call>', '<invoke name="ls"></invoke>'],
    "marked": ["<|tool_call|>ls", "<tool_calls>[]</tool_calls>", '<|START_ACTION|>[{"tool_name": "ls", "parameters": {"p": "'],
    "lfm": [
        "<|tool_call_start|>[ls('x')]<|tool_call_end|>", "<|tool_call_start|>ls<|tool_call_end|>", "<|tool_call_start|>[ls(p='a"],
    "gemma": ['<|tool_call>call:ls{p:<|"|>x}<tool_call|>', "<|tool_call>ls{}<tool_call|>"],
    "gemma3": ["```tool_code\nx = 1\n```", '```json\n{"name": "x"}\n```'],
    "glm4": ['weather {"city": "Oslo"}', 'rain\n{"city": "Oslo"}', 'weather\n["x"]',
             'weather\n{"city": "Os', "weather", "weather\nis fine", '{"p": 1}',
             'I call\nls\n{}', 'x' * 200 + '\n{}'],
    "apertus": ["<|tools_prefix|>[]<|tools_suffix|>", '<|tools_prefix|>[{"ls": {"p": "/ho', '<|tools_prefix|>[{"l s": {}}]<|tools_suffix|>',
                '<|tools_prefix|>[{"ls": 5}]<|tools_suffix|>'],
    "python": ["<function_calls>\nls(\n", "<function_calls></function_calls>", "<function_calls>\nls\n</function_calls>"],
    "llama": [
        '{"answer": 42}', '{"name": "Bob", "age": 4}', ' {"name": "ls"}\n', "[link](url) and [ls(p=1) text",
        "[ls(p='1') is a call]", "<|python_tag|>print(1)", "  \n"],
    "solar": ["plain text", "<|tool_calls|>ls", '<|tool_call:begin|>a<|tool_call:name|>ls<|tool_call:args|>{"p": "'],
    "harmony": ["plain text, no channels", "<|channel|>says Bob\n", "<|start|>" + "x" * 600],
}
TEXTS = [(form, text) for form, texts in TEXTS.items() for text in texts]


def named(name: str) -> T.ToolFormat:
    return next(form for form in T.FORMATS if form.name == name)


def streamed(form: T.ToolFormat, pieces: list[str], tools=TOOLS) -> list[T.Event]:
    stream = form.stream(tools)
    return [event for piece in pieces for event in stream.push(piece)] + stream.finish()


def pieces(text: str, r: random.Random, longest: int = 6) -> list[str]:
    out = []
    while text:
        n = r.randint(1, longest)
        out.append(text[:n])
        text = text[n:]
    return out


def plain(message: T.Message) -> tuple:
    """A message without its random ids."""
    return message.content, message.reasoning, [(call.name, call.arguments) for call in message.calls]


def calls(form: str, text: str, tools=TOOLS) -> list[tuple[str, dict]]:
    return [(call.name, json.loads(call.arguments)) for call in named(form).parse(text, tools)[1]]


@pytest.mark.parametrize(("form", "text", "content", "expected"), EXAMPLES)
def test_each_family_is_read(form, text, content, expected):
    assert calls(form, text) == expected
    assert named(form).parse(text, TOOLS)[0] == content


@pytest.mark.parametrize(("form", "text"), TEXTS)
def test_what_is_no_call_stays_content_to_the_letter(form, text):
    assert plain(named(form).message(text, TOOLS)) == (text, "", [])


@pytest.mark.parametrize("form", CALLING, ids=lambda form: form.name)
def test_without_tools_all_is_content(form):
    for name, text, *_ in EXAMPLES:
        if name == form.name not in ("harmony", "solar"):
            assert plain(form.message(text, None)) == plain(form.message(text, [])) == (text, "", [])


def test_streaming_equals_the_whole_for_any_cut():
    r = random.Random(5)
    for form, text, *_ in [*EXAMPLES, *TEXTS]:
        whole = plain(named(form).message(text, TOOLS))
        assert plain(collect(streamed(named(form), list(text)))) == whole
        for n in range(1, len(text)) if len(text) < 200 else ():
            assert plain(collect(streamed(named(form), [text[:n], text[n:]]))) == whole, (form, text, n)
        for _ in range(4):
            assert plain(collect(streamed(named(form), pieces(text, r, 12)))) == whole, (form, text)


def test_events_of_a_call_are_complete_numbered_and_valid():
    """known_failures C10: id and name once, deltas joined are JSON."""
    text = '<tool_call>{"name": "ls", "arguments": {"p": "a"}}</tool_call>' * 3
    events = streamed(T.TAGS, list(text))
    assert [type(event) for event in events] == [CallStart, Arguments, CallEnd] * 3
    assert [event.index for event in events] == [n for n in range(3) for _ in range(3)]
    assert all(json.loads(event.delta) == {"p": "a"} for event in events[1::3])
    ids = [event.id for event in events[::3]]
    assert len(set(ids)) == 3
    assert all(len(i) == 29 and i.startswith("call_") and i[5:].isalnum() for i in ids)


def test_kimis_own_ids_are_kept_and_never_twice():
    """Its templates write them back, and the model counts on: functions.name:N."""
    text = f"{K_ALL}{K}functions.ls:3{K_ARGS}{{}}{K_END}{K}functions.ls:3{K_ARGS}{{}}{K_END}{K_ALL_END}"
    first, second = (call.id for call in T.KIMI.parse(text, TOOLS)[1])
    assert first == "functions.ls:3" and re.fullmatch(r"call_\w{24}", second)


def test_mistral_ids_are_what_its_templates_insist_on():
    ids = [call.id for call in T.MISTRAL.parse("[TOOL_CALLS]ls[ARGS]{}[TOOL_CALLS]ls[ARGS]{}", TOOLS)[1]]
    assert len(set(ids)) == 2
    assert all(len(i) == 9 and i.isalnum() for i in ids)


# --- what users hit -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("text", [
    "<tool_call>\n<function=ls>\n<parameter=p>\nsrc\n</parameter>\n</function>",
    "<tool_call>\n<function=ls>\n<parameter=p>\nsrc\n</parameter>",
    '<tool_call>\n{"name": "ls", "arguments": {"p": "src"}}', '<tool_call>\n{"name": "ls", "arguments": {"p": "src"}',
    '<tool_call>\n{"name": "ls", "arguments": {"p": "src"}\n</tool_call>',
    "<tool_call>ls<arg_key>p</arg_key><arg_value>src</arg_value>",
])
def test_unclosed_call_at_the_end_is_not_dropped(text):
    """known_failures C1: whole arguments, only closers missing."""
    assert calls("tags", text) == [("ls", {"p": "src"})]
    assert T.TAGS.parse(text, TOOLS)[0] == ""


@pytest.mark.parametrize(("form", "text", "rest"), [
    ("tags", '<tool_call>{"name": "ls", "arguments": {}}</tool_call>\n<tool_call>{"name": "run", "arguments": {"cmd": "rm -r',
     '<tool_call>{"name": "run", "arguments": {"cmd": "rm -r'),
    ("mistral", '[TOOL_CALLS][{"name": "ls", "arguments": {}}, {"name": "run", "arg', '{"name": "run", "arg'),
    ("lfm", "<|tool_call_start|>[ls(), run(cmd='rm -r", "run(cmd='rm -r"), ("llama", "[ls(), run(cmd=", "run(cmd="),
    ("mistral", '[TOOL_CALLS][{"name": "ls", "arguments": {}}', ""), ("lfm", "<|tool_call_start|>[ls()", ""),
    ("deepseek", f"{DS_ALL}{DS}ls{SEP}{{}}{DS_END}{DS}run{SEP}{{", f"{DS}run{SEP}{{"),
])
def test_cut_call_is_text_and_whole_ones_before_it_stand(form, text, rest):
    """known_failures C1: half a command is never handed out."""
    assert calls(form, text) == [("ls", {})]
    assert named(form).parse(text, TOOLS)[0] == rest


@pytest.mark.parametrize("text", [
    "<function=f><parameter=a>1<parameter=b>2</function>",
    "<tool_call><function=f>\n<parameter=a>\n1\n<parameter=b>\n2\n</function>\n</tool_call>",
    "<tool_call>f<arg_key>a</arg_key><arg_value>1<arg_key>b</arg_key><arg_value>2</tool_call>",
])
def test_missing_parameter_closer_keeps_both_parameters(text):
    """known_failures C2."""
    form = "function" if "function" in text else "tags"
    assert calls(form, text) == [("f", {"a": "1", "b": "2"})]


@pytest.mark.parametrize("value", [
    "see </parameter> tag", "</parameter>", "a</function>b", "x </tool_call> y", "<parameter=zzz> is no parameter of run",
    "{'</parameter>'}", "<parameter=cmd>x</parameter>y",
])
def test_closer_inside_a_value_is_kept(value):
    """known_failures C3: a closer counts only where the next parameter, the end of the call or of the output follows."""
    text = f"<tool_call>\n<function=run>\n<parameter=cmd>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert calls("tags", text) == [("run", {"cmd": value})]
    assert calls("tags", text.replace("\n", "")) == [("run", {"cmd": value})]
    glm = value.replace("parameter=", "arg_key>").replace("parameter", "arg_value")
    text = f"<tool_call>run<arg_key>cmd</arg_key><arg_value>{glm}</arg_value></tool_call>"
    assert calls("tags", text) == [("run", {"cmd": glm})]


@pytest.mark.parametrize("broken", [
    "<parameter=\n", "<parameter=ids: [1]\n", "<parameter=note=\n", "<parameter=>\n1\n</parameter>\n",
    "<parameter=a b>\n1\n</parameter>\n", '<parameter="x">\n1\n</parameter>\n',
])
def test_malformed_parameter_name_is_dropped_from_the_arguments(broken):
    """known_failures C4: streamed or whole; its text is shown."""
    text = f"<tool_call>\n<function=run>\n{broken}<parameter=cmd>\nls\n</parameter>\n</function>\n</tool_call>"
    for message in (T.TAGS.message(text, TOOLS), collect(streamed(T.TAGS, list(text)))):
        assert plain(message) == (broken.rstrip(), "", [("run", '{"cmd": "ls"}')])


@pytest.mark.parametrize("text", [
    "echo '}'", '{"a": [}', "'''", '"', "\\", "</tool_call>", "]\u2028[", "a\nb\tc", "\\d+\\.", "é 客 👨‍👩‍👧", '<|"|',
])
def test_braces_quotes_and_markers_in_strings_are_text(text):
    """known_failures C5."""
    expected = [("run", {"cmd": text})]
    literal = json.dumps(text)
    assert calls("tags", f'<tool_call>{{"name": "run", "arguments": {{"cmd": {literal}}}}}</tool_call>') == expected
    assert calls("tags", f"<tool_call><function=run><parameter=cmd>{text}</parameter></function></tool_call>") == expected
    assert calls("tags", f"<tool_call>run<arg_key>cmd</arg_key><arg_value>{text}</arg_value></tool_call>") == expected
    assert calls("mistral", f'[TOOL_CALLS]run[ARGS]{{"cmd": {literal}}}') == expected
    assert calls("lfm", f"<|tool_call_start|>[run(cmd={text!r})]<|tool_call_end|>") == expected
    assert calls("gemma", f'<|tool_call>call:run{{cmd:<|"|>{text}<|"|>}}<tool_call|>') == expected
    assert calls("harmony", f'<|channel|>commentary to=functions.run<|message|>{{"cmd": {literal}}}<|call|>') == expected


@pytest.mark.parametrize(("parameter", "text", "expected"), [
    ("metric", "True", True), ("metric", "false", False), ("metric", "yes", "yes"), ("days", "12", 12), ("days", " -3\n", -3),
    ("days", "1.5", "1.5"), ("days", "007", "007"), ("limit", "1e3", 1000.0), ("limit", "0.10", 0.1), ("limit", "NaN", "NaN"),
    ("tags", '["a", "b"]', ["a", "b"]), ("tags", "['a', 'b']", ["a", "b"]), ("tags", "a, b", "a, b"), ("level", "2", 2),
    ("where", '{"lat": 1.5}', {"lat": 1.5}), ("where", "{'lat': None}", {"lat": None}), ("where", "[1]", "[1]"),
    ("note", "null", None), ("note", "5", "5"), ("city", "5", "5"), ("city", "true", "true"), ("city", "{}", "{}"),
    ("free", "5", "5"), ("unknown", "true", "true"),
])
def test_text_is_typed_by_the_schema(parameter, text, expected):
    """known_failures C7: and what the schema does not settle stays a string."""
    qwen = f"<function=weather><parameter=city>x</parameter><parameter={parameter}>{text}</parameter></function>"
    glm = f"weather<arg_key>city</arg_key><arg_value>x</arg_value><arg_key>{parameter}</arg_key><arg_value>{text}</arg_value>"
    hermes = f'{{"name": "weather", "arguments": {{"city": "x", "{parameter}": {json.dumps(text)}}}}}'
    for inner in (qwen, glm, hermes):
        got = calls("tags", f"<tool_call>{inner}</tool_call>")
        assert got == [("weather", {"city": "x", parameter: expected})]
        assert type(got[0][1][parameter]) is type(expected)


def test_numbers_keep_their_digits():
    text = '<tool_call>{"name": "f", "arguments": {"a": 12345678901234567890, "b": 0.1000, "c": [1E5]}}</tool_call>'
    assert T.TAGS.parse(text, TOOLS)[1][0].arguments == '{"a": 12345678901234567890, "b": 0.1000, "c": [1E5]}'


def test_sloppy_json_strings_are_read_without_loss():
    text = '<tool_call>{"name": "run", "arguments": {"cmd": "a\nb\\d \\u00e9\\ud83d\\ude00 \\ud800",}}</tool_call>'
    arguments = T.TAGS.parse(text, TOOLS)[1][0].arguments
    assert json.loads(arguments) == {"cmd": "a\nb\\d é😀 \ufffd"}
    assert arguments.encode()


@pytest.mark.parametrize("schema", [
    None, 5, [], {"required": 7}, {"properties": 3}, {"properties": {"a": {"type": ["integer", None, 4]}}},
    {"properties": {"a": {"$ref": "#/nowhere"}}}, {"properties": {"a": {"$ref": "#/properties/a"}}},
    {"properties": {"a": {"anyOf": "x"}}}, {"properties": {"a": {"enum": 1}}}, {"properties": {"a": {"allOf": [{}, 3]}}},
])
def test_odd_schemas_do_no_harm(schema):
    odd = [7, None, {}, {"function": None}, {"name": ["x"]}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}, *odd]
    assert calls("function", "<function=f><parameter=a>1</parameter></function>", tools)[0][1]["a"] in (1, "1")


def test_unknown_function_is_a_call_all_the_same():
    text = '<tool_call>{"name": "mcp__files/read.v2", "arguments": {"x": 1}}</tool_call>'
    assert calls("tags", text) == [("mcp__files/read.v2", {"x": 1})]


# --- streaming ----------------------------------------------------------------------------------------------------------

def test_content_waits_only_for_the_start_of_an_opener():
    stream = T.TAGS.stream(TOOLS)
    got = [stream.push(piece) for piece in ("Hi", " there", " <", "b> <tool", "_box>", "\n")]
    assert got == [[Content("Hi")], [Content(" there")], [], [Content(" <b>")], [Content(" <tool_box>")], []]
    assert stream.finish() == [Content("\n")]


def test_call_is_handed_out_at_its_last_brace():
    stream = T.HARMONY.stream(TOOLS)
    text = '<|channel|>commentary to=functions.ls<|message|>{"p": "a"}<|call|>'
    assert [event for ch in text[:-1] for event in stream.push(ch)] == []
    assert [type(event) for event in stream.push(text[-1])] == [CallStart, Arguments, CallEnd]


def test_thoughts_of_solar_open_stream_and_a_cut_header_is_no_content():
    """known_failures E1, E5; its ids are kept."""
    text = "<|think|>One two.<|end|><|begin|>assistant<|content|>Hi"
    stream = T.SOLAR.stream(None)
    assert [event for ch in text for event in stream.push(ch)] == [*(Reasoning(ch) for ch in "One two."), Content("H"), Content("i")]
    for cut in ("<|think|>One", "<|think|>One<|end|><|begin|>", "<|think|>One<|end|><|begin|>assis", "<|think|>One<|end|><|begin|>assistant"):
        assert plain(T.SOLAR.message(cut, TOOLS)) == ("", "One", []), cut
    assert T.SOLAR.parse(EXAMPLES[-3][1], TOOLS)[1][0].id == "a1"


def test_json_answer_of_a_prompted_model_streams_from_its_first_foreign_key():
    stream = T.LLAMA.stream(TOOLS)
    assert stream.push('{"na') == []
    assert stream.push('tion": "No') == [Content('{"nation": "No')]
    assert stream.push('rway"}') == [Content('rway"}')]


def test_reasoning_of_harmony_streams_and_a_cut_header_is_no_content():
    """known_failures E1, E5: cut in the middle of a thought or of a header, the answer is empty."""
    text = "<|channel|>analysis<|message|>One two.<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    stream = T.HARMONY.stream(None)
    events = [event for ch in text for event in stream.push(ch)]
    assert events == [*(Reasoning(ch) for ch in "One two."), Content("H"), Content("i")]
    tokens = re.findall(r"<\|\w+\|>|\w+|.", text)
    for n in range(len(tokens)):
        assert T.HARMONY.message("".join(tokens[:n]), TOOLS).content == ""
    assert T.HARMONY.message(text[:20], None) == ("", "", [])


@pytest.mark.parametrize("inner", ["weather<|message|>rm -rf /", 'weather<|message|>{"city": "Os', "weather<|message|>"])
def test_harmony_call_without_whole_arguments_is_shown_with_its_header(inner):
    text = f"<|channel|>commentary to=functions.{inner}"
    assert plain(T.HARMONY.message(text, TOOLS)) == (text, "", [])
    assert plain(T.HARMONY.message(text + "<|call|>", TOOLS)) == (text, "", [])


# --- choosing -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("template", "expected"), [
    ("{{ '<tool_call>\n' }}", "tags"), ("<tool_call><arg_key>", "tags"), ("<tool_call>\n<function=x>", "function"),
    ("'[TOOL_CALLS]' + name", "mistral"), ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek"), ("<|tool_call_start|>[", "lfm"),
    ("<|tool_list_start|>", "lfm"), ("'<|tool_call>call:'", "gemma"), ("<start_function_call>", "gemma"),
    ("<|start|>assistant<|channel|>final<|message|>", "harmony"), ("<|python_tag|>", "llama"), ("'<|python_start|>' + call", "llama"),
    ('Respond in the format {"name": function name, "parameters": dictionary of argument name', "llama"),
    ("<|tool_calls_section_begin|><|tool_call_begin|>", "kimi"), ("'<|tool_call:begin|>' + id", "solar"),
    ('<minimax:tool_call>\n<invoke name="', "minimax"),
    ("'<|tool_call|>' + calls", "marked"), ("<tool_calls>[", "marked"), ("<|START_ACTION|>[", "marked"), ("<|im_start|>", "none"), (None, "none"),
])
def test_format_is_chosen_by_what_the_template_writes(template, expected):
    assert parser_for(template).name == expected


# --- anything -----------------------------------------------------------------------------------------------------------

WORDS = [
    *sorted({word for form in CALLING for word in form.openers}), "</tool_call>", "<function=", "run", ">", "<parameter=", "cmd",
    "</parameter>", "</function>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "[ARGS]", "[CALL_ID]", SEP, DS_END,
    DS_ALL_END, K_ARGS, K_END, K_ALL_END, '<invoke name="', '<parameter name="', '">', "</invoke>",
    "</minimax:tool_call>", "<|tool_call_end|>", "call:", '<|"|>', "<escape>", "<tool_call|>", "```", "to=functions.", "<|constrain|>json",
    "<|message|>", "analysis", '{"name": "run", "arguments": {"cmd": "x"}}', '{"name": "', '", "arguments": {', "run(cmd='x')",
    *"{}[]()'\"\\,:;=1 \n客", "true", "\\ud800"]


def shuffled(form: T.ToolFormat, words: list[str], r: random.Random) -> str:
    """Markers of all families in any order, with `words` among them."""
    parts = [r.choice(WORDS if r.random() < .7 or not form.openers else form.openers) for _ in range(r.randint(1, 24))]
    for word in words:
        parts.insert(r.randint(0, len(parts)), word)
    return "".join(parts)


def broken(form: T.ToolFormat, r: random.Random) -> str:
    """What the family writes, with pieces missing, doubled or put in."""
    text = r.choice([text for name, text, *_ in EXAMPLES if name == form.name])
    for _ in range(r.randint(0, 3)):
        at, n = r.randint(0, len(text)), r.randint(1, 8)
        text = text[:at] + r.choice(("", text[at:at + n] * 2, r.choice(WORDS) + text[at:at + n])) + text[at + n:]
    return text


def test_5000_random_texts_never_raise_lose_text_or_depend_on_cuts():
    r = random.Random(11)
    seen = 0
    for n in range(5000):
        form = CALLING[n % len(CALLING)]
        words = [f"w{i}q" for i in range(r.randint(0, 3))]
        text = shuffled(form, words, r) if n % 2 else broken(form, r)
        message = form.message(text, TOOLS)
        assert plain(collect(streamed(form, pieces(text, r)))) == plain(message), (form.name, text)
        seen += len(message.calls)
        for call in message.calls:
            assert isinstance(json.loads(call.arguments), dict)
            assert call.arguments.encode()
        if not message.calls and not form.reasons:
            assert message.content == text, (form.name, text)
        at = 0
        for ch in "".join(message.content.split()):     # content is what the output says, in its order
            at = text.find(ch, at) + 1
            assert at, (form.name, text, message)
        for word in words if n % 2 and not form.reasons else ():
            assert word in message.content + str(message.calls), (form.name, text, message)
    assert seen > 1500


def test_long_hostile_texts_stay_linear():
    for form, text in [
        (T.FUNCTION, "<function=f><parameter=a>" * 4000), (T.LFM, "<|tool_call_start|>[f(a='" * 4000),
        (T.TAGS, "<tool_call>" * 20000), (T.TAGS, "<tool_call>" + '{"name":[' * 10000), (T.HARMONY, "<|start|>to=a b" * 5000),
        (T.SOLAR, '<|tool_call:begin|><|tool_call:name|>f<|tool_call:args|>{"a":[' * 4000), (T.SOLAR, '<|tool_call:begin|>' * 20000),
        (T.LLAMA, "[" * 100000),
    ]:
        assert form.message(text, TOOLS).content.strip() == text
