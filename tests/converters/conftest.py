"""Tiny checkpoints of both kinds, made from an architecture's own description, and a way to read values back from a container."""
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from moegg import kernels
from moegg.arch import ConfigReader
from moegg.formats.container import Container
from moegg.models import gemma3, llama, qwen3_moe
from moegg.quants import INTERLEAVED

MOE = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 301, "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96,
    "moe_intermediate_size": 32, "num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": False, "hidden_act": "silu"}
DENSE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": True, "hidden_act": "silu"}
MODULES = {"qwen3_moe": qwen3_moe, "llama": llama, "gemma3_text": gemma3}
GGUF_KEYS = {
    "qwen3_moe": {"arch": "qwen3moe", "expert_feed_forward_length": "moe_intermediate_size", "expert_count": "num_experts",
                  "expert_used_count": "num_experts_per_tok"},
    "llama": {"arch": "llama"}}


def bf16_bits(x: np.ndarray) -> np.ndarray:
    u = np.ascontiguousarray(x, "<f4").view("<u4").astype(np.uint64)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2")


def bf16_round(x: np.ndarray) -> np.ndarray:
    return (bf16_bits(x).astype("<u4") << 16).view("<f4")


def save_safetensors(path: Path, tensors: dict[str, np.ndarray], dtype: str = "F32") -> None:
    """Writes f32 arrays as F32, F16 or BF16, other arrays as they are (U8)."""
    head, blobs, at = {}, [], 0
    for name, x in tensors.items():
        kind = dtype if x.dtype == np.float32 else "U8"
        encode = {"F32": lambda x: x.astype("<f4"), "F16": lambda x: x.astype("<f2"), "BF16": bf16_bits, "U8": lambda x: x}
        data = encode[kind](x).tobytes()
        head[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [at, at + len(data)]}
        blobs.append(data)
        at += len(data)
    text = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def weights(config: dict, seed: int = 0) -> dict[str, np.ndarray]:
    """Container name -> f32 values that bf16 holds exactly; experts as 'layers.3.experts.gate' [E, F, D]."""
    model = MODULES[config["model_type"]].describe(ConfigReader(config))
    rng = np.random.default_rng(seed)
    out = {t.name: rng.standard_normal(t.shape) for t in model.tensors()}
    out |= {f"layers.{e.layer}.experts.{p.name}": rng.standard_normal((e.n, *p.shape)) for e in model.experts() for p in e.parts}
    return {name: bf16_round(x.astype("f4")) for name, x in out.items()}


def hf_names(config: dict, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    model = MODULES[config["model_type"]].describe(ConfigReader(config))
    out = {t.hf[0].name: values[t.name] - np.float32(t.hf[0].add) for t in model.tensors()}
    for e in model.experts():
        for i in range(e.n):
            out |= {p.hf[0].name.replace("{e}", str(i)): values[f"layers.{e.layer}.experts.{p.name}"][i] for p in e.parts}
    return out


@pytest.fixture
def make_hf(tmp_path):
    """make_hf(config, dtype="BF16", edit=None, name="hf") -> folder; edit(tensors) may change the tensors first."""
    def make(config: dict = MOE, dtype: str = "BF16", edit=None, name: str = "hf", values=None) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "b"}))
        tensors = hf_names(config, values or weights(config))
        if edit:
            edit(tensors)
        save_safetensors(folder / "model.safetensors", tensors, dtype)
        return folder
    return make


@pytest.fixture
def make_gguf(tmp_path):
    """make_gguf(config, quant="BF16", edit=None, more={}) -> path; matrices as `quant`, vectors and routers f32."""
    def make(config: dict = MOE, quant: str = "BF16", edit=None, more=None, name: str = "m.gguf", values=None,
             tensors=None) -> Path:
        module, keys = MODULES[config["model_type"]], dict(GGUF_KEYS[config["model_type"]])
        arch = keys.pop("arch")
        keys |= {"block_count": "num_hidden_layers", "embedding_length": "hidden_size",
                 "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
                 "attention.head_count_kv": "num_key_value_heads", "context_length": "max_position_embeddings",
                 "attention.layer_norm_rms_epsilon": "rms_norm_eps", "rope.freq_base": "rope_theta",
                 "attention.key_length": "head_dim", "attention.value_length": "head_dim"}
        w = GGUFWriter(tmp_path / name, arch)
        for key, source in keys.items():
            if source in config:
                value = config[source]
                (w.add_float32 if isinstance(value, float) else w.add_uint32)(f"{arch}.{key}", value)
        for key, value in (more or {}).items():
            add = {str: w.add_string, float: w.add_float32, int: w.add_uint32, bool: w.add_bool, list: w.add_array}
            add[type(value)](key, value)
        model, values = module.describe(ConfigReader(config)), dict(values or weights(config))
        out = {t.gguf[0].name: values[t.name] for t in model.tensors()}
        out |= {p.gguf[0].name: values[f"layers.{e.layer}.experts.{p.name}"] for e in model.experts() for p in e.parts}
        if edit:
            edit(out)
        for tensor, x in out.items():
            if x.ndim == 1 or "gate_inp" in tensor or quant == "F32":
                w.add_tensor(tensor, x)
            elif quant == "F16":
                w.add_tensor(tensor, x.astype("f2"))
            else:
                rows = kernels.quantize(quant.lower(), x.reshape(-1, x.shape[-1]))
                w.add_tensor(tensor, rows.reshape(*x.shape[:-1], -1), raw_dtype=GGMLQuantizationType[quant])
        for tensor, (x, dtype) in (tensors or {}).items():
            w.add_tensor(tensor, x, raw_dtype=dtype)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return tmp_path / name
    return make


def _rows(data: bytes, quant: str, layout: str, shape) -> np.ndarray:
    rows, cols = (1, shape[0]) if len(shape) == 1 else shape
    raw = np.frombuffer(data, np.uint8)
    return kernels.deinterleave(quant, raw, rows, cols) if layout == INTERLEAVED else raw.reshape(rows, -1)


@pytest.fixture
def read_back():
    """read_back(path) -> {name: (quant, row-major bytes, f32 values)}; stacked expert parts as 'layers.3.experts.gate'."""
    def read(path: Path) -> dict[str, tuple[str, bytes, np.ndarray]]:
        c, data, out = Container.open(path), path.read_bytes(), {}
        c.verify()
        for t in c.tensors.values():
            rows = _rows(data[t.offset:t.offset + t.nbytes], t.quant, t.layout, t.shape)
            out[t.name] = t.quant, rows.tobytes(), kernels.dequantize(t.quant, rows, t.shape[-1]).reshape(t.shape)
        for layer in c.layers:
            for p in layer.parts:
                each = []
                for e in range(layer.n):
                    at = c.record(layer.layer, e)[0] + p.offset
                    each.append(_rows(data[at:at + p.nbytes], p.quant, p.layout, p.shape))
                values = np.stack([kernels.dequantize(p.quant, r, p.shape[1]) for r in each])
                out[f"layers.{layer.layer}.experts.{p.name}"] = p.quant, b"".join(r.tobytes() for r in each), values
        return out
    return read


@pytest.fixture
def moe() -> dict:
    """A config with experts whose rows fit 32-element blocks; vocabulary and expert count are odd."""
    return dict(MOE)


@pytest.fixture
def dense() -> dict:
    """A tied config without experts."""
    return dict(DENSE)


@pytest.fixture
def make_values():
    """make_values(config, seed=0) -> {container name: f32 values}; stacked for experts."""
    return weights
