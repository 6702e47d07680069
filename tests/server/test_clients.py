"""The real client packages against the server, where they are installed; the default suite skips them."""
import json
import os
import shutil
import subprocess
import warnings

import pytest

from moegg.server.app import MAX_BODY
from moegg.server.guard import Policy
from tests.server.scripted import TEMPLATE, until

pytestmark = pytest.mark.filterwarnings("ignore")
MESSAGES = [{"role": "user", "content": "x"}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 12}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "add", "description": "adds",
                                           "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}]


@pytest.fixture
def openai_client():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        openai = pytest.importorskip("openai")
    return lambda s, **options: openai.OpenAI(base_url=f"http://127.0.0.1:{s.client.port}/v1", api_key="k", max_retries=0,
                                              timeout=60, **options)


@pytest.fixture
def anthropic_client():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anthropic = pytest.importorskip("anthropic")
    return lambda s: anthropic.Anthropic(base_url=f"http://127.0.0.1:{s.client.port}", api_key="k", max_retries=0, timeout=60)


def test_openai_chat_plain_streamed_and_refused(serve, openai_client):
    import openai
    with serve("<think>hm</think>hello wörld", template=TEMPLATE + "{# <think></think> #}") as s, openai_client(s) as c:
        r = c.chat.completions.create(model="m", messages=MESSAGES, n=2, logprobs=True, top_logprobs=1)
        assert [x.message.content for x in r.choices] == ["hello wörld"] * 2 and r.choices[0].message.reasoning_content == "hm"
        assert r.choices[0].logprobs.content[0].top_logprobs[0].logprob <= 0
        chunks = list(c.chat.completions.create(model="m", messages=MESSAGES, stream=True,
                                                stream_options={"include_usage": True}))
        assert "".join(x.choices[0].delta.content or "" for x in chunks
                       if x.choices) == "hello wörld" and chunks[-1].usage.total_tokens > 3
        with c.chat.completions.stream(model="m", messages=MESSAGES) as stream:
            assert stream.get_final_completion().choices[0].finish_reason == "stop"
        with pytest.raises(openai.BadRequestError) as e:
            c.chat.completions.create(model="m", messages=[{"role": "user", "content": "word " * 400}])
        assert e.value.code == "context_length_exceeded"
        assert c.models.list().data[0].id == c.models.retrieve("tiny").id == "tiny"
        with pytest.raises(openai.NotFoundError):
            c.models.retrieve("other")
        with pytest.raises(openai.APIStatusError) as e:
            c.embeddings.create(model="m", input="x")
        assert e.value.status_code == 501


def test_openai_completions(serve, openai_client):
    with serve("hello") as s, openai_client(s) as c:
        r = c.completions.create(model="m", prompt=["a", "b"], logprobs=2, max_tokens=2)
        assert len(r.choices) == 2 and r.choices[0].finish_reason == "length" and len(r.choices[0].logprobs.tokens) == 2
        assert "".join(x.choices[0].text for x in c.completions.create(model="m", prompt="a", stream=True)) == "hello"


def test_openai_responses(serve, openai_client):
    with serve("<think>hm</think>hello", template=TEMPLATE + "{# <think></think> #}") as s, openai_client(s) as c:
        r = c.responses.create(model="m", input="x", instructions="be kind")
        assert r.output_text == "hello" and r.status == "completed" and r.usage.total_tokens > 0 and r.output[0].type == "reasoning"
        events = list(c.responses.create(model="m", input=[{"role": "user", "content": [{"type": "input_text", "text": "x"}]}],
                                         stream=True))
        assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == "hello"
        assert events[-1].type == "response.completed" and events[-1].response.output_text == "hello"
        assert [e.sequence_number for e in events] == list(range(len(events)))
        with c.responses.stream(model="m", input="x") as stream:
            assert stream.get_final_response().output_text == "hello"
        assert c.responses.create(model="m", input="x", max_output_tokens=1).incomplete_details.reason == "max_output_tokens"


def test_anthropic_messages(serve, anthropic_client):
    with serve("<think>hm</think>hello", template=TEMPLATE + "{# <think></think> #}") as s, anthropic_client(s) as c:
        r = c.messages.create(model="m", max_tokens=50, messages=MESSAGES)
        assert [b.type for b in r.content] == ["thinking",
                                               "text"] and r.content[1].text == "hello" and r.stop_reason == "end_turn"
        assert c.messages.create(model="m", max_tokens=2, messages=MESSAGES).stop_reason == "max_tokens"
        with c.messages.stream(model="m", max_tokens=50, system=[{"type": "text", "text": "be kind"}],
                               messages=MESSAGES) as stream:
            assert "".join(stream.text_stream) == "hello"
            final = stream.get_final_message()
        assert [b.type for b in final.content] == ["thinking", "text"] and final.content[0].thinking == "hm"
        assert c.messages.count_tokens(model="m",
                                       messages=MESSAGES).input_tokens == r.usage.input_tokens + r.usage.cache_read_input_tokens


def test_langchain(serve):
    langchain = pytest.importorskip("langchain_openai")
    with serve(CALL, ctx=2048) as s:
        chat = langchain.ChatOpenAI(base_url=f"http://127.0.0.1:{s.client.port}/v1", api_key="k", model="m", max_retries=0,
                                    timeout=60)
        assert chat.bind_tools(TOOLS).invoke("x").tool_calls[0]["args"] == {"a": 12}
        assert "".join(c.content for c in chat.stream("x")) == chat.invoke("x").content == CALL


def test_litellm(serve, monkeypatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    with serve("hello") as s:
        options = {"model": "openai/m", "api_base": f"http://127.0.0.1:{s.client.port}/v1", "api_key": "k", "messages": MESSAGES,
                   "num_retries": 0}
        assert litellm.completion(**options).choices[0].message.content == "hello"
        assert "".join(c.choices[0].delta.content or "" for c in litellm.completion(stream=True, **options)) == "hello"


def test_llm(serve):
    models = pytest.importorskip("llm.default_plugins.openai_models")
    with serve("hello") as s:
        model = models.Chat("tiny", model_name="tiny", api_base=f"http://127.0.0.1:{s.client.port}/v1")
        assert model.prompt("x", key="k").text() == "hello" and "".join(model.prompt("x", stream=True, key="k")) == "hello"


def test_a_tool_round_trip_through_the_clients(serve, openai_client, anthropic_client):
    with serve(CALL, ctx=2048) as s, openai_client(s) as o, anthropic_client(s) as a:
        r = o.chat.completions.create(model="m", messages=MESSAGES, tools=TOOLS)
        call = r.choices[0].message.tool_calls[0]
        assert (r.choices[0].finish_reason, call.function.name, call.function.arguments) == ("tool_calls", "add", '{"a": 12}')
        again = [*MESSAGES, r.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "12"}]
        assert o.chat.completions.create(model="m", messages=again, tools=TOOLS).choices
        with o.chat.completions.stream(model="m", messages=MESSAGES, tools=TOOLS) as stream:
            assert stream.get_final_completion().choices[0].message.tool_calls[0].function.arguments == '{"a": 12}'
        r = o.responses.create(model="m", input="x", tools=[{"type": "function", **TOOLS[0]["function"]}, {"type": "web_search"}])
        assert (r.output[0].type, r.output[0].arguments) == ("function_call", '{"a": 12}')
        tools = [{"name": "add", "description": "adds", "input_schema": TOOLS[0]["function"]["parameters"]}]
        r = a.messages.create(model="m", max_tokens=99, messages=MESSAGES, tools=tools)
        assert (r.stop_reason, r.content[-1].type, r.content[-1].input) == ("tool_use", "tool_use", {"a": 12})
        with a.messages.stream(model="m", max_tokens=99, messages=MESSAGES, tools=tools) as stream:
            assert stream.get_final_message().content[-1].input == {"a": 12}
        back = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": r.content[-1].id, "content": "12"}]}
        assert a.messages.create(model="m", max_tokens=9, messages=[*MESSAGES, {"role": "assistant", "content": r.content}, back],
                                 tools=tools).content


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}


def test_json_schemas_and_forced_calls_through_the_clients(serve, openai_client, anthropic_client):
    pytest.importorskip("llguidance")
    tool = {"name": "add", "description": "adds", "input_schema": SCHEMA}
    with serve("nonsense " * 9, ctx=2048) as s, openai_client(s) as o, anthropic_client(s) as a:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}
        r = o.chat.completions.create(model="m", messages=MESSAGES, response_format=form, temperature=1, seed=3)
        assert set(json.loads(r.choices[0].message.content)) == {"n"}
        r = o.responses.create(model="m", input="x", text={"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}})
        assert set(json.loads(r.output_text)) == {"n"}
        function = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
        r = o.chat.completions.create(model="m", messages=MESSAGES, tools=[function], parallel_tool_calls=False, tool_choice="required")
        assert set(json.loads(r.choices[0].message.tool_calls[0].function.arguments)) == {"n"}
        r = a.messages.create(model="m", max_tokens=99, messages=MESSAGES, tools=[tool], tool_choice={"type": "tool", "name": "add"})
        assert set(r.content[0].input) == {"n"} and r.stop_reason == "tool_use"


def test_stops_and_torn_characters_through_the_clients(serve, openai_client, anthropic_client):
    with serve("客单价 alpha beta gamma 👩‍👩‍👧") as s, openai_client(s) as o, anthropic_client(s) as a:
        for stop, text in (("ta gam", "客单价 alpha be"), (None, "客单价 alpha beta gamma 👩‍👩‍👧")):
            chunks = o.chat.completions.create(model="m", messages=MESSAGES, stream=True, stop=stop)
            assert "".join(c.choices[0].delta.content or "" for c in chunks) == text
            options = {"stop_sequences": [stop]} if stop else {}
            with a.messages.stream(model="m", max_tokens=200, messages=MESSAGES, **options) as stream:
                assert "".join(stream.text_stream) == text and stream.get_final_message().stop_sequence == stop


def test_two_clients_at_once_and_one_that_leaves(serve, openai_client):
    with serve([300] * 20_000, ctx=10_000, parallel=2, step_s=0.002) as s, openai_client(s) as one, openai_client(s) as two:
        streams = [c.chat.completions.create(model="m", messages=MESSAGES, stream=True) for c in (one, two)]
        for _ in range(5):
            assert [next(stream).object for stream in streams] == ["chat.completion.chunk"] * 2
        streams[0].close()
        until(lambda: s.worker.load() == (1, 0))
        assert next(streams[1]).choices and s.metrics.value("answers_total", end="cancelled") == 1
        streams[1].close()
        until(lambda: s.worker.load() == (0, 0))


def test_refusals_are_the_clients_own_errors(serve, openai_client, anthropic_client):
    import anthropic
    import openai
    with serve("hello", policy=Policy(keys=("secret",))) as s, openai_client(s) as o, anthropic_client(s) as a:
        with pytest.raises(openai.AuthenticationError):
            o.models.list()
        with pytest.raises(anthropic.AuthenticationError):
            a.messages.create(model="m", max_tokens=9, messages=MESSAGES)
    huge = [{"role": "user", "content": "x" * (MAX_BODY + 1)}]
    with serve("hello") as s, openai_client(s) as o, anthropic_client(s) as a:
        with pytest.raises(openai.APIStatusError) as e:
            o.chat.completions.create(model="m", messages=huge)
        assert e.value.status_code == 413
        with pytest.raises(anthropic.APIStatusError) as e:
            a.messages.create(model="m", max_tokens=9, messages=huge)
        assert e.value.status_code == 413


NODE = """
const OpenAI = require('openai').default, url = process.argv[1];
(async () => {
  const c = new OpenAI({ baseURL: url, apiKey: 'k', maxRetries: 0 });
  const messages = [{ role: 'user', content: 'x' }];
  const whole = await c.chat.completions.create({ model: 'm', messages });
  let text = '', usage = null;
  for await (const chunk of await c.chat.completions.create({ model: 'm', messages, stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? '';
    usage = chunk.usage ?? usage;
  }
  const reply = await c.responses.create({ model: 'm', input: 'x' });
  const wrong = await c.models.retrieve('other').catch(e => e.status);
  console.log(JSON.stringify([whole.choices[0].message.content, text, usage.total_tokens > 3, reply.output_text, wrong]));
})();
"""


def test_openai_for_node(serve):
    """Where MOEGG_TEST_NODE is a folder in which `npm install openai` has run."""
    folder, node = os.environ.get("MOEGG_TEST_NODE"), shutil.which("node")
    if not folder or not node:
        pytest.skip("no node, or MOEGG_TEST_NODE names no folder with the package openai")
    with serve("hello wörld") as s:
        done = subprocess.run([node, "-e", NODE, f"http://127.0.0.1:{s.client.port}/v1"], cwd=folder, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == ["hello wörld", "hello wörld", True, "hello wörld", 404], done.stderr
