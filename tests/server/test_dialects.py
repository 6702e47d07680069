"""The other dialects over a real socket: completions, responses, Anthropic, Ollama, llama.cpp; and tools in all of them."""
import json
import threading

import pytest

from tests.server.scripted import TEMPLATE, joined, tiny_tokenizer

USER = [{"role": "user", "content": "x"}]
TOOL = {"name": "add", "description": "adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOLS = [{"type": "function", "function": TOOL}]


def call(number):
    """What a model writes that was told of tools in plain text."""
    return f'<tool_call>\n{{"name": "add", "arguments": {{"a": {number}}}}}\n</tool_call>'


THINKING = TEMPLATE + "{# <think></think> #}"


# --- completions ---------------------------------------------------------------------------------------------------------------

def test_completions_of_texts_and_ids(serve, tokenizer):
    ids = tokenizer.encode("once upon")
    with serve("hello") as s:
        r = s.client.post("/v1/completions", {"prompt": ["once upon", "b"], "n": 2})[1]
        assert [c["text"] for c in r["choices"]] == ["hello"] * 4 and r["object"] == "text_completion" and r["id"].startswith("cmpl-")
        assert s.client.post("/v1/completions", {"prompt": ids})[1]["usage"]["prompt_tokens"] == len(ids)
        assert s.client.post("/v1/completions", {"prompt": ids, "echo": True})[1]["choices"][0]["text"] == "once uponhello"
        assert s.client.post("/v1/completions", {"prompt": "a", "max_tokens": 0, "echo": True})[1]["choices"][0] == {
            "index": 0, "text": "a", "logprobs": None, "finish_reason": "length"}
        events = s.client.sse("/v1/completions", {"prompt": "a", "logprobs": 1, "stream_options": {"include_usage": True}})
    chunks = [d for _, d in events[:-1]]
    assert "".join(c["choices"][0]["text"] for c in chunks
                   if c["choices"]) == "hello" and chunks[-1]["choices"] == [] and events[-1][1] == "[DONE]"
    offsets = [o for c in chunks if c["choices"] and c["choices"][0]["logprobs"]
               for o in c["choices"][0]["logprobs"]["text_offset"]]
    assert offsets[0] == 0 and offsets == sorted(offsets)


@pytest.mark.parametrize("fields", [{}, {"prompt": None}, {"prompt": []}, {"prompt": [[]]}, {"prompt": [1, "a"]},
                                    {"prompt": [True]}, {"prompt": [100_000]}, {"prompt": [-1]},
                                    {"prompt": "a", "suffix": "b"}, {"prompt": "a", "best_of": 3},
                                    {"prompt": "a", "echo": True, "logprobs": 1}, {"prompt": ""}, {"prompt": ["a"] * 5000}])
def test_completions_refuse_what_they_cannot_do(serve, fields):
    with serve() as s:
        status, r = s.client.post("/v1/completions", fields)
    assert status == 400 and r["error"]["type"] == "invalid_request_error"


def test_suffix_uses_the_models_own_tokens(serve, tokenizer, monkeypatch):
    from moegg.server import prompts  # here, as the test changes it
    monkeypatch.setattr(prompts, "FIM", ((("<|bos|>", "<|pad|>", "<|endoftext|>"), False),))
    with serve("mid") as s:
        r = s.client.post("/v1/completions", {"prompt": "def f", "suffix": "return"})[1]
        seen = s.worker._timelines.all[0].session.tokens
    want = [1, *tokenizer.encode("def f"), 0, *tokenizer.encode("return"), 2]
    assert r["choices"][0]["text"] == "mid" and seen[:len(want)] == want


# --- Anthropic -----------------------------------------------------------------------------------------------------------------

def test_messages_shape_and_stop_words(serve):
    """D22."""
    with serve("<think>hm</think>alpha beta", template=THINKING) as s:
        def ask(**f):
            return s.client.post("/v1/messages", {"max_tokens": 99, "messages": USER, **f})[1]
        r = ask()
        assert (r["type"], r["role"], r["stop_reason"], r["stop_sequence"]) == ("message", "assistant", "end_turn",
                                                                                None) and r["id"].startswith("msg_")
        assert [b["type"] for b in r["content"]] == ["thinking", "text"] and r["content"][1]["text"] == "alpha beta"
        assert ask(max_tokens=1)["stop_reason"] == "max_tokens"
        r = ask(stop_sequences=["beta"])
        assert (r["stop_reason"], r["stop_sequence"], r["content"][1]["text"]) == ("stop_sequence", "beta", "alpha ")


def test_messages_stream_order(serve):
    with serve("<think>hm</think>hello", template=THINKING) as s:
        events = s.client.sse("/v1/messages", {"max_tokens": 99, "messages": USER})
    assert all(name == data["type"] for name, data in events)
    kinds = [n for i, (n, _) in enumerate(events) if n != "ping" and (n != "content_block_delta" or events[i - 1][0] != n)]
    assert kinds == ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "content_block_start",
                     "content_block_delta",
                     "content_block_stop", "message_delta", "message_stop"]
    deltas = [d["delta"] for n, d in events if n == "content_block_delta"]
    assert "".join(d.get("thinking", "") for d in deltas) == "hm" and "".join(d.get("text", "") for d in deltas) == "hello"
    assert [d["index"] for n, d in events if n == "content_block_start"] == [0, 1]
    end = next(d for n, d in events if n == "message_delta")
    start = events[0][1]["message"]["usage"]["input_tokens"]
    assert end["delta"]["stop_reason"] == "end_turn" and end["usage"]["input_tokens"] + end["usage"]["cache_read_input_tokens"] == start


@pytest.mark.parametrize("path, body", [
    ("/v1/messages", lambda line: {"max_tokens": 9, "messages": USER, "system": [
        {"type": "text", "text": line}, {"type": "text", "text": "be kind " * 20, "cache_control": {"type": "ephemeral"}}]}),
    ("/v1/messages", lambda line: {"max_tokens": 9, "messages": USER, "system": f"{line}\n{'be kind ' * 20}"}),
    ("/v1/chat/completions", lambda line: {"messages": [{"role": "system", "content": f"{line}\n{'be kind ' * 20}"}, *USER]}),
    ("/v1/responses", lambda line: {"instructions": f"{line}\n\n{'be kind ' * 20}", "input": "x"}),
    ("/api/chat", lambda line: {"messages": [{"role": "system", "content": line}, {"role": "system", "content": "be kind " * 20}, *USER],
                                "stream": False})])
def test_a_header_line_that_changes_with_every_request_does_not_reach_the_prompt(serve, path, body):
    """landscape 7.3: coding agents put a checksum first, which would end all reuse."""
    lines = [f"x-anthropic-billing-header: cc_version=1; cch={checksum};" for checksum in ("aaaaa", "bbbbb")]
    with serve("hello", ctx=512) as s:
        assert s.client.post(path, body(lines[0]))[0] == 200
        read = s.metrics.value("prompt_tokens_total")
        assert read > 60 and s.client.post(path, body(lines[1]))[0] == 200
        assert s.metrics.value("prompt_tokens_total") <= read + 1
        if path == "/v1/messages":
            assert s.client.post("/v1/messages/count_tokens?beta=true", body(lines[1]))[1]["input_tokens"] == read


def test_messages_blocks_reach_the_template_in_place(serve):
    body = {"max_tokens": 9, "system": "S", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "T", "signature": ""}, {"type": "text", "text": "A"},
                                          {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "R"}]},
                                     {"type": "text", "text": "next"}]}]}
    from moegg.server import anthropic  # here, to see the messages themselves
    roles = [(m["role"], m["content"]) for m in anthropic.request(body).messages]
    assert roles == [("system", "S"), ("user", "q"), ("assistant", "A"), ("tool", "R"), ("user", "next")]
    assert anthropic.request(body).messages[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert anthropic.request(body).messages[3]["name"] == "add"
    with serve("hello", ctx=1024) as s:
        assert s.client.post("/v1/messages", body)[0] == 200


def test_an_assistants_last_message_is_continued(serve):
    with serve(" world") as s:
        r = s.client.post("/v1/messages", {"max_tokens": 9, "messages": [*USER, {"role": "assistant", "content": "hello"}]})[1]
    assert r["content"] == [{"type": "text", "text": " world"}]


@pytest.mark.parametrize("fields", [{"messages": []}, {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
                                    {"messages": [{"role": "x", "content": ""}]}, {"system": 3},
                                    {"tools": [{"input_schema": {}}]}, {"tool_choice": {"type": "tool", "name": "no"}},
                                    {"tool_choice": {"type": "any"}}, {"max_tokens": 0}, {"system": [3]}])
def test_messages_refusals_have_the_right_form(serve, fields):
    with serve() as s:
        status, r = s.client.post("/v1/messages", {"max_tokens": 9, "messages": USER, **fields})
    assert status == 400 and r["type"] == "error" and r["error"]["type"] == "invalid_request_error"


# --- responses -----------------------------------------------------------------------------------------------------------------

def test_responses_probe_and_unknown_tools_are_fine(serve):
    with serve("hello") as s:
        r = s.client.post("/v1/responses", {"input": [], "max_output_tokens": 1,
                                            "tools": [{"type": "web_search"}, {"type": "namespace"},
                                                      {"type": "custom", "name": "x"}]})
        assert r[0] == 200 and r[1]["status"] == "incomplete" and r[1]["tools"] == []
        counted = s.client.post("/v1/responses/input_tokens", {"input": "x"})[1]["input_tokens"]
        assert counted == s.client.post("/v1/responses", {"input": "x"})[1]["usage"]["input_tokens"]
        for fields in ({"previous_response_id": "resp_1"}, {"background": True},
                       {"input": [{"type": "item_reference", "id": "x"}]}, {"input": 3},
                       {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}):
            assert s.client.post("/v1/responses", {"input": "x", **fields})[0] == 400


def test_responses_items_become_messages():
    from moegg.server import responses  # here, to see the messages themselves
    ask = responses.request({"instructions": "I", "input": [
        {"role": "developer", "content": "D"}, {"type": "message", "role": "user",
                                                "content": [{"type": "input_text", "text": "q"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "T"}]},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}, {"type": "local_shell_call"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"}]})
    assert [(m["role"], m["content"]) for m in ask.messages] == [("system", "I"), ("system", "D"), ("user", "q"),
                                                                 ("assistant", ""), ("tool", "2")]
    assert ask.messages[3]["reasoning_content"] == "T" and ask.messages[4]["name"] == "add"
    assert ask.messages[3]["tool_calls"][0]["function"]["arguments"] == {"a": 1}


# --- tools ---------------------------------------------------------------------------------------------------------------------

def test_calls_are_append_only_deltas_and_whole_messages(serve):
    """C10, C13: id and name once, arguments join to JSON; content is null beside calls."""
    with serve(call(1) + "\n" + call(22), ctx=2048) as s:
        message = s.client.chat(tools=TOOLS)[1]["choices"][0]
        chunks = s.client.chat_stream(tools=TOOLS)
        one = s.client.chat(tools=TOOLS, parallel_tool_calls=False)[1]["choices"][0]
        none = s.client.chat(tools=TOOLS, tool_choice="none")[1]["choices"][0]
    assert message["finish_reason"] == "tool_calls" and message["message"]["content"] is None
    assert [c["function"] for c in message["message"]["tool_calls"]] == [{"name": "add", "arguments": '{"a": 1}'},
                                                                         {"name": "add", "arguments": '{"a": 22}'}]
    calls = {}
    for delta in (d for c in chunks for d in c["choices"][0]["delta"].get("tool_calls", [])):
        have = calls.setdefault(delta["index"], {"ids": [], "names": [], "arguments": ""})
        have["ids"] += [delta["id"]] if "id" in delta else []
        have["names"] += [delta["function"]["name"]] if "name" in delta["function"] else []
        have["arguments"] += delta["function"]["arguments"]
    assert [(len(c["ids"]), c["names"], json.loads(c["arguments"])) for c in calls.values()] == [(1, ["add"], {"a": 1}),
                                                                                                 (1, ["add"], {"a": 22})]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls" and joined(chunks) == ""
    assert len(one["message"]["tool_calls"]) == 1 and none["message"]["content"].startswith("<tool_call>") and none["finish_reason"] == "stop"


def test_tools_reach_models_whose_template_knows_none(serve):
    """C12: described in the system message, calls and results as text; never a refusal, never silence."""
    history = [{"role": "system", "content": "S"}, *USER,
               {"role": "assistant", "content": None,
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
               {"role": "tool", "tool_call_id": "c", "content": "2"}, {"role": "tool", "tool_call_id": "c", "content": "3"}]
    with serve() as s:
        text = s.client.post("/apply-template", {"messages": history, "tools": TOOLS})[1]["prompt"]
    assert text.startswith("<|im_start|>system\nS\n\n") and '"name": "add"' in text
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>' in text
    assert "<|im_start|>user\n<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>" in text


def test_tools_go_to_a_template_that_knows_them(serve):
    template = ("{% for t in tools %}[{{ t.function.name }}]{% endfor %}"
                "{% for m in messages %}{{ m.role }}:{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }};{% endfor %}")
    history = [*USER, {"role": "assistant", "content": None,
                       "tool_calls": [{"id": "c", "function": {"name": "add", "arguments": '{"a": 1}'}}]}]
    with serve(template=template) as s:
        text = s.client.post("/apply-template", {"messages": history, "tools": TOOLS})[1]["prompt"]
    assert text.startswith("[add]user:x;assistant:[{") and '"arguments": {"a": 1}' in text


def test_ollama_and_anthropic_calls(serve):
    with serve(call(1), ctx=2048) as s:
        r = s.client.post("/api/chat", {"messages": USER, "tools": TOOLS, "stream": False})[1]
        assert r["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}} and r["done_reason"] == "stop"
        events = s.client.sse("/v1/messages", {"max_tokens": 99, "messages": USER,
                                               "tools": [{"name": "add", "input_schema": TOOL["parameters"]}]})
    text = "".join(d["delta"].get("partial_json", "") for n, d in events if n == "content_block_delta")
    assert json.loads(text) == {"a": 1} and next(d for n, d in events
                                                 if n == "message_delta")["delta"]["stop_reason"] == "tool_use"


# --- Ollama --------------------------------------------------------------------------------------------------------------------

def lines(s, path, body):
    conn, r = s.client.open("POST", path, body)
    data = r.read()
    conn.close()
    assert r.status == 200 and r.getheader("Content-Type") == "application/x-ndjson", data
    return [json.loads(line) for line in data.splitlines()]


def test_ollama_chat_and_generate(serve):
    with serve("<think>hm</think>hello", template=THINKING) as s:
        got = lines(s, "/api/chat", {"model": "m", "messages": USER})
        assert "".join(g["message"]["content"] for g in got) == "hello" and "".join(g["message"].get("thinking", "")
                                                                                    for g in got) == "hm"
        assert [g["done"] for g in got] == [False] * (len(got) - 1) + [True] and got[-1]["done_reason"] == "stop" and got[-1]["eval_count"] > 0
        assert "".join(g["response"] for g in lines(s, "/api/generate", {"prompt": "x", "system": "S"})) == "hello"
        r = s.client.post("/api/generate", {"prompt": "x", "raw": True, "stream": False,
                                            "options": {"num_predict": 2, "temperature": 0, "seed": 1, "stop": ["zz"]}})[1]
        assert r["done_reason"] == "length" and r["eval_count"] == 2
        assert s.client.get("/api/tags")[1]["models"][0]["name"] == "tiny" and "version" in s.client.get("/api/version")[1]
        assert s.client.post("/api/show", {"model": "tiny"})[0] == 200
        for path, body in (("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["aa"]}]}),
                           ("/api/generate", {"prompt": "x", "images": ["aa"]}),
                           ("/api/chat", {"messages": USER, "format": "xml"}),
                           ("/api/chat", {"messages": USER, "think": "much"})):
            status, r = s.client.post(path, body)
            assert status == 400 and isinstance(r["error"], str)


@pytest.mark.parametrize("path, body, reason", [
    ("/api/generate", {"model": "m"}, "load"), ("/api/generate", {"prompt": "", "keep_alive": "5m", "stream": True}, "load"),
    ("/api/chat", {"model": "m"}, "load"), ("/api/chat", {"messages": [], "keep_alive": -1}, "load"),
    ("/api/generate", {"keep_alive": 0}, "unload"), ("/api/chat", {"messages": [], "keep_alive": "0s"}, "unload")])
def test_ollama_requests_without_a_prompt_load_the_model_and_write_nothing(serve, path, body, reason):
    """Clients send them when they start; an answer to an empty prompt could go on to the end of the context."""
    with serve("hello") as s:
        status, r = s.client.post(path, body)
        assert status == 200 and r["done"] is True and r["done_reason"] == reason and not s.engine.passes
        assert (r["response"] if path.endswith("generate") else r["message"]["content"]) == ""
        assert s.client.post(path, body | {"keep_alive": []})[0] == 400


@pytest.mark.parametrize("template, can", [(TEMPLATE, ["completion", "tools"]), (THINKING, ["completion", "tools", "thinking"]),
                                           (None, ["completion"])])
def test_what_ollama_clients_ask_before_they_list_a_model(serve, template, can):
    """Editors refuse servers older than 0.6.4, and take context and abilities from show; dashboards want to know when it leaves."""
    with serve("hello", template=template, info={"arch": "tiny", "size": 5}) as s:
        version = s.client.get("/api/version")[1]["version"]
        assert [int(x) for x in version.split(".")] >= [0, 6, 4]
        r = s.client.post("/api/show", {"model": "tiny"})[1]
        assert r["capabilities"] == can and r["template"] == (template or "")
        assert r["model_info"] == {"general.architecture": "tiny", "general.basename": "tiny", "tiny.context_length": 256}
        tag, = s.client.get("/api/tags")[1]["models"]
        run, = s.client.get("/api/ps")[1]["models"]
        assert run == tag | {"expires_at": run["expires_at"], "size_vram": 0} and tag["size"] == 5 and run["expires_at"] > "2100"


def test_ollama_generate_without_a_template_continues_and_silence_gives_empty_lines(serve):
    with serve("hello", template=None, ping_s=0.05) as s:
        s.engine.gate = threading.Event()
        text = s.client.released("/api/generate", {"prompt": "x"}, s.engine.gate, bool)
    got = [json.loads(line) for line in text.splitlines()]
    assert got[0]["response"] == "" and not got[0]["done"] and "".join(g["response"] for g in got) == "hello"


# --- llama.cpp -------------------------------------------------------------------------------------------------------------------

def test_llama_cpp_style_endpoints(serve):
    with serve("hello", info={"arch": "tiny"}, counters=lambda: {"hits": 3}) as s:
        get, post = s.client.get, s.client.post
        assert get("/healthz")[1]["status"] == "ok" and get("/models")[1]["data"][0]["status"] == {"value": "loaded"}
        props = get("/props")[1]
        assert props["default_generation_settings"]["n_ctx"] == 256 and props["total_slots"] == 4 and props["chat_template"] == TEMPLATE
        status, r = post("/props", {"x": 1})
        assert status == 501 and r["error"]["type"] == "not_supported_error"
        s.client.chat()
        assert "moegg_engine_hits 3" in s.client.get("/metrics")[1]
        assert get("/slots")[1][0] | {"n_tokens": 0} == {"id": 0, "n_ctx": 256, "is_processing": False, "n_tokens": 0}
        ids = post("/tokenize", {"content": "héllo <|im_end|>"})[1]["tokens"]
        assert ids[-1] == 4 and post("/detokenize", {"tokens": ids})[1]["content"] == "héllo <|im_end|>"
        assert post("/tokenize", {"content": "hé", "with_pieces": True})[1]["tokens"][0]["piece"]
        status, r = post("/tokenize", {"content": "ab " * 400_000})        # 20 MB took 4.5 GB, whatever --ram said
        assert status == 400 and "send a text in parts" in r["error"]["message"]
        assert post("/detokenize", {"tokens": [99999]})[0] == post("/tokenize", {"content": 3})[0] == 400
        assert post("/v1/embeddings", {"input": "x"})[0] == 501 and get("/v1/models")[1]["data"][0]["meta"] == {"arch": "tiny"}


def test_models_sse_says_the_list_and_stays_open(serve):
    with serve(ping_s=0.05) as s:
        conn, r = s.client.open("GET", "/models/sse")
        first = r.readline()
        assert json.loads(first[6:])["data"][0]["id"] == "tiny" and [r.readline() for _ in range(2)][1] == b": ping\n"
        conn.close()


@pytest.mark.parametrize("path, body", [("/v1/chat/completions", {"messages": USER, "response_format": {"type": "json_object"}}),
                                        ("/v1/messages", {"max_tokens": 9, "messages": USER, "tools": [{"name": "a"}],
                                                          "tool_choice": {"type": "any"}}),
                                        ("/api/chat", {"messages": USER, "format": "json"}),
                                        ("/v1/responses", {"input": "x",
                                                           "text": {"format": {"type": "json_schema", "name": "n",
                                                                               "schema": {"type": "object"}}}})])
def test_a_forced_form_without_the_package_is_a_501(serve, path, body, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with serve() as s:
        status, r = s.client.post(path, body)
    assert status == 501 and "moegg[grammar]" in str(r)


SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5},
                                           "n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["name", "n"],
          "additionalProperties": False}


def test_a_schema_holds_whatever_the_model_likes(serve):
    pytest.importorskip("llguidance")
    with serve("complete nonsense " * 9) as s:
        r = s.client.chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
                          temperature=1.0, seed=3)[1]
        value = json.loads(r["choices"][0]["message"]["content"])
        assert set(value) == {"name", "n"} and isinstance(value["n"], int) and r["choices"][0]["finish_reason"] == "stop"
        status, r = s.client.chat(response_format={"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}})
        assert status == 400 and r["error"]["code"] == "invalid_schema"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}},
                                    {"type": "allowed_tools",
                                     "allowed_tools": {"mode": "required",
                                                       "tools": [{"type": "function", "function": {"name": "add"}}]}}])
def test_a_forced_call_is_one(serve, choice):
    pytest.importorskip("llguidance")
    tool = {"type": "function",
            "function": {**TOOL, "parameters": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                                                "additionalProperties": False}}}
    with serve("nonsense " * 9, ctx=2048) as s:
        r = s.client.chat(tools=[tool], tool_choice=choice, parallel_tool_calls=False, temperature=1.0, seed=1,
                          max_tokens=300)[1]["choices"][0]
    function = r["message"]["tool_calls"][0]["function"]
    assert function["name"] == "add" and type(json.loads(function["arguments"])["a"]) is bool and r["finish_reason"] == "tool_calls"


def test_a_schema_waits_for_the_end_of_the_reasoning(serve):
    pytest.importorskip("llguidance")
    template = TEMPLATE.replace("assistant\n", "assistant\n<think>\n") + "{# </think> #}"
    assert "<think>" in template
    with serve("so be it</think>nonsense", template=template) as s:
        r = s.client.chat(response_format={"type": "json_schema", "json_schema": {"schema": SCHEMA}}, temperature=1.0,
                          seed=3)[1]["choices"][0]["message"]
    assert r["reasoning_content"] == "so be it" and set(json.loads(r["content"])) == {"name", "n"}


def test_the_tokenizer_of_these_tests_has_its_tokens():
    assert {3, 4} <= tiny_tokenizer().special_ids
