"""Turns that several families write, for their CHAT: templates in their smallest form, without tools (the server adds those as text).

Sources: the families' model cards and published prompt formats (Qwen, Meta, Google, Microsoft, Liquid AI, Moonshot). A system message
stands where the family has a place for it; Gemma up to 3 has none, so it opens the first user message. `enable_thinking` false closes
the reasoning before it begins, where a family is asked for that so.
Refuses: turns that a family's releases write in different ways, and those of families whose base models end text like chat models.
"""
from moegg.arch import Chat

THINK = ("<think>", "</think>")
ASKED = "{% if add_generation_prompt %}"
CLOSED = "{{ '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and not enable_thinking else '' }}"
OPEN = "{{ '<think>\\n\\n</think>\\n\\n' if enable_thinking is defined and not enable_thinking else '<think>\\n' }}"


def turns(begin: str, middle: str, end: str, ask: str = "", answerer: str = "assistant") -> str:
    """A template whose turns are begin, role, middle, text, end; `ask` follows the beginning of the answer's turn."""
    return ("{% for m in messages %}{{ '" + begin + "' + m.role + '" + middle + "' + m.content + '" + end + "' }}{% endfor %}"
            + ASKED + "{{ '" + begin + answerer + middle + "' }}" + ask + "{% endif %}")


def chatml(ask: str = "") -> str:
    return turns("<|im_start|>", "\\n", "<|im_end|>\\n", ask)


QWEN = Chat(("<|im_end|>", "<|endoftext|>"), template=chatml())
QWEN_THINKING = Chat(QWEN.ends, reasoning=THINK, template=chatml(CLOSED))
QWEN_OPEN = Chat(QWEN.ends, "function", THINK, template=chatml(OPEN))
CHATML = Chat(("<|im_end|>",), template=chatml(), marks=("<|im_start|>",))
LFM = Chat(("<|im_end|>",), "lfm", THINK, template="{{ bos_token }}" + chatml())
PHI = Chat(("<|end|>",), "marked", template=turns("<|", "|>\\n", "<|end|>\\n"))
GRANITE = Chat(("<|end_of_text|>",), "marked", THINK, ("<response>", "</response>"))
MISTRAL = Chat(("</s>",), "mistral", ("[THINK]", "[/THINK]"), marks=("[INST]",))
KIMI = Chat(("<|im_end|>", "[EOS]"), "kimi", THINK, marks=("<|im_middle|>",), template=(
    "{% for m in messages %}{{ '<|im_' + m.role + '|>' + m.role + '<|im_middle|>' + m.content + '<|im_end|>' }}{% endfor %}"
    + ASKED + "{{ '<|im_assistant|>assistant<|im_middle|>' }}{% endif %}"))
GEMMA = Chat(("<end_of_turn>",), "gemma3", template="""\
{% set system = messages[0].content + '\\n\\n' if messages[0].role == 'system' else '' %}
{{ bos_token }}{% for m in (messages[1:] if system else messages) %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else 'user') + '\\n' + (system if loop.first else '') + m.content }}
{{- '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""")
