"""How models talk: what a template tells, what a module declares, files without a template, ids that end an answer."""
import json

import pytest

from moegg import registry
from moegg.arch import Chat, choose_chat
from moegg.chat import render
from moegg.server import tools
from moegg.server.talk import Talk, takes_tools
from moegg.tokenizer import JSON_MEDIA, Tokenizer
from tests import oracle
from tests.server.scripted import TEMPLATE, VOCAB

DECLARED = [(arch, chat) for arch in registry.names() for chat in registry.chats(arch)]
WITH_TEMPLATE = [(arch, chat) for arch, chat in DECLARED if chat.template]
SYSTEM, ASKED, SAID, AGAIN = ({"role": role, "content": text}
                              for role, text in (("system", "TEN"), ("user", "ONE"), ("assistant", "TWO"), ("user", "SIX")))


def tokenizer(*special, eos="<|endoftext|>", plain=(), **options):
    """The tiny tokenizer with more special tokens, from id 500 on, and then tokens that are not special."""
    data = json.loads((oracle.TOKENIZER / "tokenizer.json").read_text())
    for n, text in enumerate((*special, *plain)):
        data["added_tokens"].append({**data["added_tokens"][0], "id": 500 + n, "content": text, "special": n < len(special)})
    config = {"bos_token": "<|bos|>", "eos_token": eos}
    return Tokenizer.from_sections(json.dumps(data).encode(), JSON_MEDIA, config, VOCAB, **options)


def family(arch, n=0):
    return registry.chats(arch)[n]


# --- declarations -------------------------------------------------------------------------------------------------------

def test_every_architecture_declares_how_its_chat_models_talk():
    assert {arch for arch, _ in DECLARED} == set(registry.names())
    for arch, chat in DECLARED:
        assert tools.named(chat.calls).name == chat.calls != "none" and chat.ends, arch
        assert chat.reasoning is None or all(chat.reasoning) and not tools.named(chat.calls).reasons, arch
    for arch in registry.names():       # only the last may do without marks, or none behind it would ever be chosen
        assert all(chat.marks for chat in registry.chats(arch)[:-1]), arch


def test_a_module_without_declaration_and_an_unknown_one_have_none(monkeypatch):
    monkeypatch.delattr(registry.find(arch="qwen2"), "CHAT")
    assert registry.chats("qwen2") == registry.chats("no-such-arch") == ()
    assert choose_chat((), frozenset()) == Chat() and tools.named("of a plugin").name == "tags"


def test_one_module_many_families_told_apart_by_their_tokens():
    def calls(arch, *words):
        return choose_chat(registry.chats(arch), frozenset(words)).calls
    assert calls("llama", "<|start_header_id|>", "<|eot_id|>") == "llama" and calls("llama", "<|im_start|>", "<|im_end|>") == "tags"
    assert calls("llama", "[INST]", "[/INST]", "[TOOL_CALLS]") == "mistral" and calls("llama") == "tags"
    assert calls("deepseek", "<|im_middle|>") == "kimi" and calls("deepseek", "<|user|>", "<|observation|>") == "tags"
    assert calls("deepseek", "<｜User｜>") == "deepseek" and calls("kimi-linear", "<|im_middle|>") == "kimi"


# --- templates of families ----------------------------------------------------------------------------------------------

TURNS = {
    "qwen2": "<|im_start|>system\nTEN<|im_end|>\n<|im_start|>user\nONE<|im_end|>\n<|im_start|>assistant\nTWO<|im_end|>\n"
             "<|im_start|>user\nSIX<|im_end|>\n<|im_start|>assistant\n",
    "gemma3": "<b><start_of_turn>user\nTEN\n\nONE<end_of_turn>\n<start_of_turn>model\nTWO<end_of_turn>\n<start_of_turn>user\nSIX<end_of_turn>\n"
              "<start_of_turn>model\n",
    "gemma4": "<b><|turn>system\nTEN<turn|>\n<|turn>user\nONE<turn|>\n<|turn>model\nTWO<turn|>\n<|turn>user\nSIX<turn|>\n"
              "<|turn>model\n<|channel>thought\n<channel|>",
    "llama": "<b><|start_header_id|>system<|end_header_id|>\n\nTEN<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nONE<|eot_id|>"
             "<|start_header_id|>assistant<|end_header_id|>\n\nTWO<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nSIX<|eot_id|>"
             "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "llama4": "<b><|header_start|>system<|header_end|>\n\nTEN<|eot|><|header_start|>user<|header_end|>\n\nONE<|eot|><|header_start|>assistant"
              "<|header_end|>\n\nTWO<|eot|><|header_start|>user<|header_end|>\n\nSIX<|eot|><|header_start|>assistant<|header_end|>\n\n",
    "lfm2": "<b><|im_start|>system\nTEN<|im_end|>\n<|im_start|>user\nONE<|im_end|>\n<|im_start|>assistant\nTWO<|im_end|>\n"
            "<|im_start|>user\nSIX<|im_end|>\n<|im_start|>assistant\n",
    "maple": "<|im_start|>system\nTEN<|im_end|>\n<|im_start|>user\nONE<|im_end|>\n<|im_start|>assistant\nTWO<|im_end|>\n"
             "<|im_start|>user\nSIX<|im_end|>\n<|im_start|>assistant\n<think>\n",
    "bailing-hybrid": "<role>SYSTEM</role>TEN\ndetailed thinking on<|role_end|><role>HUMAN</role>ONE<|role_end|><role>ASSISTANT</role>\nTWO"
                      "<|role_end|><role>HUMAN</role>SIX<|role_end|><role>ASSISTANT</role>\n<think>",
    "kimi-linear": "<|im_system|>system<|im_middle|>TEN<|im_end|><|im_user|>user<|im_middle|>ONE<|im_end|><|im_assistant|>assistant<|im_middle|>TWO"
                   "<|im_end|><|im_user|>user<|im_middle|>SIX<|im_end|><|im_assistant|>assistant<|im_middle|>",
    "minimax-m2": "]~!b[]~b]system\nTEN[e~[\n]~b]user\nONE[e~[\n]~b]ai\nTWO[e~[\n]~b]user\nSIX[e~[\n]~b]ai\n<think>\n",
    "minimax": "<beginning_of_sentence>system ai_setting=assistant\nTEN<end_of_sentence>\n"
               "<beginning_of_sentence>user name=user\nONE<end_of_sentence>\n"
               "<beginning_of_sentence>ai name=assistant\nTWO<end_of_sentence>\n<beginning_of_sentence>user name=user\nSIX<end_of_sentence>\n"
               "<beginning_of_sentence>ai name=assistant\n",
    "dots1": "<|system|>TEN<|endofsystem|><|userprompt|>ONE<|endofuserprompt|><|response|>TWO<|endofresponse|><|userprompt|>SIX<|endofuserprompt|>"
             "<|response|>",
    "jamba": "<b><|bom|><|system|> TEN<|eom|><|bom|><|user|> ONE<|eom|><|bom|><|assistant|> TWO<|eom|><|bom|><|user|> SIX<|eom|><|bom|><|assistant|>",
    "phi3": "<|system|>TEN<|end|><|user|>ONE<|end|><|assistant|>TWO<|end|><|user|>SIX<|end|><|assistant|>",
    "phimoe": "<|system|>\nTEN<|end|>\n<|user|>\nONE<|end|>\n<|assistant|>\nTWO<|end|>\n<|user|>\nSIX<|end|>\n<|assistant|>\n",
    "gpt-oss": "<|start|>system<|message|>Reasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel must be included for every "
               "message.<|end|><|start|>developer<|message|># Instructions\n\nTEN<|end|><|start|>user<|message|>ONE<|end|>"
               "<|start|>assistant<|channel|>final<|message|>TWO<|end|><|start|>user<|message|>SIX<|end|><|start|>assistant",
}


@pytest.mark.parametrize("arch", TURNS)
def test_the_template_of_a_family_writes_its_published_turns(arch):
    assert render(family(arch).template, [SYSTEM, ASKED, SAID, AGAIN], bos="<b>") == TURNS[arch]


@pytest.mark.parametrize("arch, chat", WITH_TEMPLATE, ids=[f"{arch}-{chat.calls}" for arch, chat in WITH_TEMPLATE])
def test_every_template_of_a_family_is_sound(arch, chat):
    """One user message alone; no word of tools, which it cannot show; earlier turns end with what ends an answer."""
    alone = render(chat.template, [ASKED], bos="<b>")
    long = render(chat.template, [SYSTEM, ASKED, SAID, AGAIN], bos="<b>")
    assert alone.count("ONE") == 1 and "None" not in long and not takes_tools(chat.template)
    assert [long.count(word) for word in ("TEN", "ONE", "TWO", "SIX", "<b>")][:4] == [1] * 4 and long.count("<b>") == ("bos_token" in chat.template)
    assert long.split("TWO")[1].startswith(chat.ends[0]) or arch == "gpt-oss"       # whose earlier turns end with <|end|>
    off = render(chat.template, [ASKED], bos="<b>", variables={"enable_thinking": False})
    assert not off.rstrip().endswith((chat.reasoning or ("<never>",))[0]) or arch == "minimax-m2"      # which always reasons


def test_reasoning_is_switched_where_a_family_can_be_asked():
    def end(arch, **variables):
        return render(family(arch).template, [ASKED], bos="", variables=variables)[-24:]
    assert end("qwen3", enable_thinking=False).endswith("<think>\n\n</think>\n\n") and "<think>" not in end("qwen3")
    assert end("qwen4-exp").endswith("<think>\n") and end("qwen4-exp", enable_thinking=False).endswith("</think>\n\n")
    assert end("gemma4", enable_thinking=True).endswith("<|turn>model\n") and end("bailing-hybrid", enable_thinking=False).endswith("<think></think>")
    assert "<|think|>" in render(family("gemma4").template, [ASKED], variables={"enable_thinking": True})
    assert "Reasoning: high" in render(family("gpt-oss").template, [ASKED], variables={"reasoning_effort": "high"})


def test_a_file_without_template_gets_its_familys_if_its_turns_end_so():
    """Chat models declare the end of a turn as the end of text, base models of the same vocabulary another token."""
    chats = registry.chats("qwen3-moe")
    base, chat = (Talk.of(tokenizer(eos=eos), {}, chats) for eos in ("<|endoftext|>", "<|im_end|>"))
    listed = Talk.of(tokenizer(eos_ids={2, 4}), {}, chats)
    assert (base.source, base.template()) == ("none", None) and chat.source == listed.source == "family"
    assert chat.template() == chats[0].template and Talk.of(tokenizer(eos="<|im_end|>"), {"default": "x"}, chats).template() == "x"
    assert Talk.of(tokenizer(eos="<|im_end|>"), {}, registry.chats("olmo2")).source == "none"
    ids, thinking = chat.prompt(chat.template(), [ASKED])
    assert chat.tokenizer.decode(ids) == "<|im_start|>user\nONE<|im_end|>\n<|im_start|>assistant\n" and not thinking


# --- ends ---------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("arch, chat", DECLARED, ids=[f"{arch}-{chat.calls}" for arch, chat in DECLARED])
def test_an_answer_ends_where_its_family_ends_turns_whatever_the_configs_forget(arch, chat):
    """The model that goes on and on: generation_config.json is missing, or names <|endoftext|> alone."""
    ends = [end for end in chat.ends if end not in ("<|im_end|>", "<|endoftext|>")]
    special, plain = (tokenizer(*names, plain=others, ends=chat.ends) for names, others in ((ends, ()), ((), ends)))
    for tok in (special, plain):
        assert {tok.id_of(end) for end in ends} <= tok.eos_ids and tok.declared == {2}
    assert tokenizer(ends=("<|not there|>",)).eos_ids == {2, 4}
    assert {special.id_of(end) for end in ends} <= Talk(special, {}, chat).ends("any template")


def test_ends_that_a_tokenizer_names_besides_its_eos_count():
    """tokenizer_config.json's eot_token and eom_token, as Gemma 4 and Llama have them."""
    data = (oracle.TOKENIZER / "tokenizer.json").read_bytes()
    for key in ("eot_token", "eom_token"):
        tok = Tokenizer.from_sections(data, JSON_MEDIA, {"eos_token": "<|endoftext|>", key: {"content": "<|im_start|>"}}, VOCAB)
        assert tok.eos_ids == {2, 3, 4} and not tok.turn_ids


def test_the_next_turns_opener_ends_an_answer_of_a_chat_alone():
    talk = Talk(tokenizer(), {})
    assert talk.ends("template") - talk.ends(None) == {3}


# --- reasoning ----------------------------------------------------------------------------------------------------------

def spoken(talk, text, template, thinking=False, given=()):
    """(reasoning, content) of an answer, pushed token by token."""
    voice = talk.voice(template, thinking=thinking, given=given)
    events = [e for i in talk.tokenizer.encode(text, special=True) for e in voice.push(i)] + voice.finish()
    return tuple("".join(e.text for e in events if getattr(e, "kind", "") == kind) for kind in ("reasoning", "content"))


@pytest.mark.parametrize("arch, text, expected", [
    ("qwen3", "<think>hm</think>\n\nyes", ("hm", "yes")), ("gemma4", "<|channel>thought\nhm\n<channel|>yes", ("hm", "yes")),
    ("cohere2", "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>yes<|END_RESPONSE|>", ("hm", "yes")),
    ("hunyuan-moe", "<think>\nhm\n</think>\n<answer>\nyes\n</answer>", ("hm", "yes")),
    ("ernie4-5-moe", "<think>\nhm\n</think>\n\n<response>\nyes </response> no\n</response>\n", ("hm", "yes </response> no")),
    ("granite", "<think>hm</think><response>yes</response>", ("hm", "yes")),
    ("gpt-oss", "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes", ("hm", "yes")),
    ("solar-open", "<|think|>hm<|end|><|begin|>assistant<|content|>yes", ("hm", "yes")),
    ("qwen2", "<think>hm</think>yes", ("hm", "yes")), ("phi3", "<think>hm</think>yes", ("", "<think>hm</think>yes")),
    ("apertus", "<|inner_prefix|>hm<|inner_suffix|>yes", ("hm", "yes")),
    ("telechat3", "<think>hm</think>yes", ("hm", "yes")), ("granite", "plain <response>", ("", "plain <response>")),
])
@pytest.mark.parametrize("given", [(), ({"type": "function", "function": {"name": "f"}},)], ids=["talk", "tools"])
def test_reasoning_is_apart_though_the_template_says_nothing_of_it(arch, text, expected, given):
    """E1: as the family declares it; the tags are special tokens, which are hidden otherwise, or text."""
    tags = [t for pair in (family(arch).reasoning, family(arch).answer) if pair for t in pair if t.startswith("<|") or t == "<channel|>"]
    special = {"gpt-oss": ("<|start|>", "<|end|>", "<|message|>", "<|channel|>"), "gemma4": ("<|channel>", "<channel|>"),
               "solar-open": ("<|think|>", "<|end|>", "<|begin|>", "<|content|>")}.get(arch, tags)
    template = "{{ messages }}" + {"gpt-oss": "<|channel|>", "solar-open": "<|tool_call:begin|>"}.get(arch, "")
    assert spoken(Talk(tokenizer(*special), {}, family(arch)), text, template, given=given) == expected


def test_a_prompt_that_opens_the_reasoning_is_noticed_whoever_names_the_tags():
    for template in ("{{ 'x<think>\n' }}{# </think> #}", "{{ 'x<think>\n' }}"):
        talk = Talk(tokenizer(), {"default": template}, family("deepseek", 2))
        ids, thinking = talk.prompt(template, [ASKED])
        assert thinking and spoken(talk, "hm</think>yes", template, thinking) == ("hm", "yes")
    closed = "{{ 'x<think></think>' }}"
    assert not Talk(tokenizer(), {}, family("glm4-moe")).prompt(closed, [ASKED])[1]
    gemma = Talk(tokenizer("<|channel>", "<channel|>"), {}, family("gemma4"))
    assert not gemma.prompt(family("gemma4").template, [ASKED])[1] and gemma.prompt("{{ '<|channel>thought\n' }}", [ASKED])[1]


# --- tools --------------------------------------------------------------------------------------------------------------

def test_a_template_that_only_mentions_tools_shows_none():
    """Phi-4-mini's reads them from a message's key, where no client puts them."""
    assert takes_tools("{{ tools | tojson }}") and takes_tools("{{ tools }}{{ raise_exception('two messages, please') }}")
    assert not takes_tools("{% if 'tools' in messages[0] %}{{ messages[0].tools }}{% endif %}") and not takes_tools(TEMPLATE.replace("tools", ""))


def test_what_a_template_writes_decides_before_the_family_and_text_where_it_shows_no_tools():
    talk = Talk(tokenizer(), {}, family("cohere2"))
    assert talk.form("{{ tools }}").name == "marked" and talk.form("{{ tools }}<tool_call>").name == "tags"
    assert talk.form("{{ messages }}").name == "tags" and talk.form(None).name == "none"


def test_switches_of_reasoning_reach_templates_under_every_name(serve):
    with serve(template="{{ thinking }} {{ enable_thinking }}") as s:
        for fields, shown in (({"reasoning_effort": "none"}, "False False"), ({"enable_thinking": True}, "True True"), ({}, " ")):
            assert s.client.post("/apply-template", {"messages": [ASKED], **fields})[1]["prompt"] == shown


def test_a_template_that_shows_tools_but_no_calls_gets_them_as_text(serve):
    """GLM-4's: what was called, and what came of it, would be lost from the conversation."""
    template = "{{ tools | tojson }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    with serve(template=template) as s:
        status, r = s.client.post("/apply-template", {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]},
                                                                   {"role": "tool", "tool_call_id": "c1", "content": "42"}],
                                                      "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]})
    assert status == 200 and '"name": "f"' in r["prompt"].split("[user]")[0]
    assert '[assistant]<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>[user]<tool_response>\n42\n</tool_response>' in r["prompt"]
