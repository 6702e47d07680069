"""The real client packages against the server, where they are installed (openai, anthropic); the default suite skips them."""
import warnings

import pytest

from tests.server.scripted import TEMPLATE

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
