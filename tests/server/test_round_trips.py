"""A call that went through a family's template comes back from its parser: templates in the manner of the published ones, in own words."""
import json
import random

import pytest

from moegg.chat import render
from moegg.server import tools

ARGUMENTS = {"city": 'Os"lo \n\té 客 <x>', "days": 2, "metric": True, "limit": -1.5e-3, "tags": ["a", "b c"], "where": {"lat": 1.5, "on": False}}
SCHEMA = {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}, "metric": {"type": "boolean"}, "limit": {"type": "number"},
    "tags": {"type": "array", "items": {"type": "string"}}, "where": {"type": "object"}}}
TOOLS = [{"type": "function", "function": {"name": name, "description": name, "parameters": SCHEMA}} for name in ("get_weather", "look.up")]
CALLS = [{"id": f"functions.{name}:{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
         for n, (name, arguments) in enumerate([("get_weather", ARGUMENTS), ("look.up", {"city": "Bergen"}), ("get_weather", {})])]
# what all share: tools in front, turns, results as the family marks them; CALLS is what differs
FRAME = ("{% if tools %}{{ 'tools: ' + (tools | tojson) }}{% endif %}{% for m in messages %}"
         "{% if m.role == 'assistant' %}{{ '[A]' + m.content }}{% if m.tool_calls %}__CALLS__{% endif %}{{ '[/A]' }}"
         "{% elif m.role == 'tool' %}{{ '__RESULT__' % m.content }}{% else %}{{ '[' + m.role + ']' + m.content }}{% endif %}{% endfor %}"
         "{% if add_generation_prompt %}{{ '[A]' }}{% endif %}")
EACH = "{% for c in m.tool_calls %}{% set f = c.function %}__ONE__{% endfor %}"
VALUE = "{{ v if v is string else v | tojson }}"
JSON = "{{ '{\"name\": \"' + f.name + '\", \"arguments\": ' + (f.arguments | tojson) + '}' }}"
COMMA = "{{ ', ' if not loop.last else '' }}"
GEMMA = ("{% macro q(v) %}{% if v is string %}{{ '<|\"|>' + v + '<|\"|>' }}{% elif v is boolean %}{{ 'true' if v else 'false' }}{% elif v is mapping %}"
         "{{ '{' }}{% for k, x in v | items %}{{ k + ':' + q(x) }}{{ ',' if not loop.last else '' }}{% endfor %}{{ '}' }}"
         "{% elif v is sequence %}{{ '[' }}{% for x in v %}{{ q(x) }}{{ ',' if not loop.last else '' }}{% endfor %}{{ ']' }}{% else %}{{ v }}{% endif %}"
         "{% endmacro %}")
DS = [f"<｜tool▁{x}｜>" for x in ("calls▁begin", "call▁begin", "sep", "call▁end", "calls▁end")]
K = [f"<|tool_{x}|>" for x in ("calls_section_begin", "call_begin", "call_argument_begin", "call_end", "calls_section_end")]

# name: (format, how calls are written, how a result is)
FAMILIES = {
    "hermes, qwen3": ("tags", EACH.replace("__ONE__", "{{ '\\n<tool_call>\\n' }}" + JSON + "{{ '\\n</tool_call>' }}"), "<tool_response>\\n%s\\n</tool_response>"),
    "qwen3-coder, qwen3.5": ("function", EACH.replace("__ONE__", "{{ '\\n<tool_call>\\n<function=' + f.name + '>\\n' }}{% for k, v in f.arguments | items %}"
        "{{ '<parameter=' + k + '>\\n' }}" + VALUE + "{{ '\\n</parameter>\\n' }}{% endfor %}{{ '</function>\\n</tool_call>' }}"), "<tool_response>%s</tool_response>"),
    "glm-4.5, ling": ("tags", EACH.replace("__ONE__", "{{ '\\n<tool_call>' + f.name + '\\n' }}{% for k, v in f.arguments | items %}"
        "{{ '<arg_key>' + k + '</arg_key>\\n<arg_value>' }}" + VALUE + "{{ '</arg_value>\\n' }}{% endfor %}{{ '</tool_call>' }}"), "<|observation|>%s"),
    "deepseek-v3.1": ("deepseek", f"{{{{ '{DS[0]}' }}}}" + EACH.replace(
        "__ONE__", f"{{{{ '{DS[1]}' + f.name + '{DS[2]}' + (f.arguments | tojson) + '{DS[3]}' }}}}") + f"{{{{ '{DS[4]}' }}}}", "<｜tool▁output▁begin｜>%s<｜tool▁output▁end｜>"),
    "deepseek-v3": ("deepseek", f"{{{{ '{DS[0]}' }}}}" + EACH.replace("__ONE__", f"{{{{ '{DS[1]}function{DS[2]}' + f.name + '\\n```json\\n' + (f.arguments | tojson)"
        f" + '\\n```{DS[3]}\\n' }}}}") + f"{{{{ '{DS[4]}' }}}}", "<｜tool▁output▁begin｜>%s<｜tool▁output▁end｜>"),
    "kimi-k2": ("kimi", f"{{{{ '{K[0]}' }}}}" + EACH.replace("__ONE__", f"{{{{ '{K[1]}' + c.id + '{K[2]}' + (f.arguments | tojson) + '{K[3]}' }}}}")
        + f"{{{{ '{K[4]}' }}}}", "## Return of\\n%s"),
    "minimax-m2": ("minimax", "{{ '\\n<minimax:tool_call>\\n' }}" + EACH.replace("__ONE__", "{{ '<invoke name=\"' + f.name + '\">\\n' }}"
        "{% for k, v in f.arguments | items %}{{ '<parameter name=\"' + k + '\">' }}" + VALUE + "{{ '</parameter>\\n' }}{% endfor %}{{ '</invoke>\\n' }}")
        + "{{ '</minimax:tool_call>' }}", "<response>%s</response>"),
    "mistral-v3": ("mistral", "{{ '[TOOL_CALLS][' }}" + EACH.replace("__ONE__", JSON + COMMA) + "{{ ']' }}", "[TOOL_RESULTS]%s[/TOOL_RESULTS]"),
    "mistral-small-3.2": ("mistral", EACH.replace("__ONE__", "{{ '[TOOL_CALLS]' + f.name + '[ARGS]' + (f.arguments | tojson) }}"), "[TOOL_RESULTS]%s[/TOOL_RESULTS]"),
    "llama-3.1": ("llama", EACH.replace("__ONE__", "{{ '; ' if not loop.first else '' }}{{ '{\"name\": \"' + f.name + '\", \"parameters\": ' + (f.arguments | tojson)"
        " + '}' }}") + "{# {\"name\": function name, \"parameters\": dictionary of argument name and its value} #}", "<|start_header_id|>ipython<|end_header_id|>%s"),
    "glm-4": ("glm4", EACH.replace("__ONE__", "{{ f.name + '\\n' + (f.arguments | tojson) }}"), "<|observation|>\\n%s"),
    "apertus": ("apertus", "{{ '<|tools_prefix|>[' }}" + EACH.replace("__ONE__", "{{ '{\"' + f.name + '\": ' + (f.arguments | tojson) + '}' }}" + COMMA)
        + "{{ ']<|tools_suffix|>' }}", "[%s]"),
    "olmo-3": ("python", "{{ '<function_calls>' }}" + EACH.replace("__ONE__", "{{ f.name + '(' }}{% for k, v in f.arguments | items %}{{ k + '=' + (v | tojson) }}"
        + COMMA + "{% endfor %}{{ ')\\n' if not loop.last else ')' }}") + "{{ '</function_calls>' }}", "<|im_start|>environment\\n%s"),
    "seed-oss": ("function", EACH.replace("__ONE__", "{{ '\\n<seed:tool_call>\\n<function=' + f.name + '>\\n' }}{% for k, v in f.arguments | items %}"
        "{{ '<parameter=' + k + '>' }}" + VALUE + "{{ '</parameter>\\n' }}{% endfor %}{{ '</function>\\n</seed:tool_call>' }}"), "<seed:bos>tool\\n%s"),
    "gemma-4": ("gemma", EACH.replace("__ONE__", "{{ '<|tool_call>call:' + f.name + q(f.arguments) + '<tool_call|>' }}"), "<|tool_response>response:%s<tool_response|>"),
    "lfm2": ("lfm", "{{ '<|tool_call_start|>[' }}" + EACH.replace("__ONE__", "{{ f.name + '(' }}{% for k, v in f.arguments | items %}{{ k + '=' }}"
        "{% if v is string %}{{ \"'\" + v + \"'\" }}{% elif v is mapping or v is sequence %}{{ v | tojson }}{% else %}{{ v }}{% endif %}" + COMMA
        + "{% endfor %}{{ ')' }}" + COMMA) + "{{ ']<|tool_call_end|>' }}", "<|tool_response_start|>%s<|tool_response_end|>"),
    "granite-3": ("marked", "{{ '<|tool_call|>[' }}" + EACH.replace("__ONE__", JSON + COMMA) + "{{ ']' }}", "<|start_of_role|>tool_response<|end_of_role|>%s"),
    "jamba, hunyuan": ("marked", "{{ '<tool_calls>[\\n' }}" + EACH.replace("__ONE__", JSON + COMMA) + "{{ '\\n]</tool_calls>' }}", "<|tool|>%s"),
    "command-r7b": ("marked", "{{ '<|START_ACTION|>[\\n' }}" + EACH.replace("__ONE__", "{{ '{\"tool_call_id\": \"' ~ loop.index0 ~ '\", \"tool_name\": \"' + f.name"
        " + '\", \"parameters\": ' + (f.arguments | tojson) + '}' }}" + COMMA) + "{{ '\\n]<|END_ACTION|>' }}", "<|START_TOOL_RESULT|>%s<|END_TOOL_RESULT|>"),
    "solar-open": ("solar", "{{ '<|tool_calls|>' }}" + EACH.replace("__ONE__", "{{ '<|tool_call:begin|>' + c.id + '<|tool_call:name|>' + f.name"
        " + '<|tool_call:args|>' + (f.arguments | tojson) + '<|tool_call:end|>' }}") + "{{ '<|calls|>' }}", "<|begin|>tool<|tool_response|>%s<|flush|>"),
    "gpt-oss": ("harmony", EACH.replace("__ONE__", "{{ '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' + (f.arguments | tojson)"
        " + '<|call|>' }}"), "<|start|>functions<|message|>%s<|end|>"),
}


def exchange(name, calls):
    """(template, what the model wrote): an assistant's turn with calls, as it stands in a conversation that went on."""
    form, written, result = FAMILIES[name]
    template = (GEMMA if form == "gemma" else "") + FRAME.replace("__CALLS__", written).replace("__RESULT__", result)
    messages = [{"role": "user", "content": "How warm?"}, {"role": "assistant", "content": "", "tool_calls": calls},
                {"role": "tool", "tool_call_id": calls[0]["id"], "content": "7 \u00b0C"}, {"role": "user", "content": "Thanks"}]
    before = render(template, messages[:1], tools=TOOLS)
    whole = render(template, messages, tools=TOOLS)
    assert whole.startswith(before) and (result.replace("\\n", "\n") % "7 \u00b0C") in whole and "look.up" in before
    return template, whole[len(before):whole.index("[/A]", len(before))]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("count", [1, 3])
def test_a_rendered_call_is_read_back(name, count):
    """Arguments of every type, several calls, one without arguments; whole, and in pieces."""
    template, text = exchange(name, CALLS[:count])
    form = tools.parser_for(template)
    if name == "glm-4":     # whose template names no marker, and which calls once per turn
        form, text, count = tools.GLM4, exchange(name, CALLS[:1])[1], 1
    assert form.name == FAMILIES[name][0]
    content, calls = form.parse(text, TOOLS)
    assert content == "" and [(c.name, json.loads(c.arguments)) for c in calls] == [(c["function"]["name"], c["function"]["arguments"]) for c in CALLS[:count]]
    r, stream, events = random.Random(3), form.stream(TOOLS), []
    while text:
        n = r.randint(1, 5)
        events += stream.push(text[:n])
        text = text[n:]
    streamed = tools.collect(events + stream.finish())
    assert [c[1:] for c in streamed.calls] == [c[1:] for c in calls] and streamed.content == ""


def test_every_notation_has_a_round_trip():
    """But for the one that is a plain model's own Python, which no template writes."""
    assert {form for form, *_ in FAMILIES.values()} == {form.name for form in tools.FORMATS} - {"none", "gemma3"}
