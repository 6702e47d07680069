"""A Hugging Face folder of a Qwen3-MoE model as an f32 GGUF without a tokenizer, for comparisons by token ids.

    python bench/qwen3moe_gguf.py FOLDER OUT.gguf

Needs the gguf package. For the model that the demo was made of; a real one is better converted by llama.cpp's own script.
"""
import json
import sys
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from moegg.converters.hf import HFSource
from moegg.converters.plan import make_plan
from moegg.converters.policy import find_recipe

KEYS = {"block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size", "expert_feed_forward_length": "moe_intermediate_size",
        "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim", "attention.value_length": "head_dim", "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok", "vocab_size": "vocab_size"}


def main(folder: str, out: str) -> None:
    config = json.loads((Path(folder) / "config.json").read_text())
    plan = make_plan(HFSource(Path(folder)), find_recipe("f32"))
    w = GGUFWriter(out, "qwen3moe")
    for key, name in KEYS.items():
        w.add_uint32(f"qwen3moe.{key}", config[name])
    w.add_float32("qwen3moe.rope.freq_base", config["rope_theta"])
    w.add_float32("qwen3moe.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    w.add_string("tokenizer.ggml.model", "none")
    for t in plan.tensors:
        w.add_tensor(t.tensor.gguf[0].name, t.view.floats(0, t.view.n_rows).reshape(t.tensor.shape))
    for e in plan.experts:
        for p in e.parts:
            w.add_tensor(p.part.gguf[0].name, np.stack([v.floats(0, v.n_rows) for v in p.views]))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
