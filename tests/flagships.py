"""The flagships: released configs, and the tensors their releases consist of - name, dtype, shape - without any weights.

Written down apart from the descriptions in moegg/models, so that one is held against the other. Sources: transformers 5.24 (shapes by the
class on the meta device, names by its save-time conversion), model cards, and public loaders for what only those show (FP8 and MXFP4 parts,
LFM2.5's vocabulary). Towers and MTP layers, which moegg leaves out, are represented by a few tensors each.
"""
import json
import math

from tests.released import COMMON, RELEASED

Tensors = dict[str, tuple[str, tuple[int, ...]]]
BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1, "I64": 8}

CONFIGS = {
    "Qwen3-30B-A3B": RELEASED["Qwen3-30B-A3B"][1],
    "Gemma-4-26B-A4B": {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "tie_word_embeddings": True, "image_token_id": 258880,
        "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "attention_k_eq_v": True, "bos_token_id": 2, "enable_moe_block": True,
            "eos_token_id": 1, "final_logit_softcapping": 30.0, "global_head_dim": 512, "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2816, "hidden_size_per_layer_input": 0, "intermediate_size": 2112,
            "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5, "max_position_embeddings": 262144,
            "model_type": "gemma4_text", "moe_intermediate_size": 704, "num_attention_heads": 16, "num_experts": 128,
            "num_global_key_value_heads": 2, "num_hidden_layers": 30, "num_key_value_heads": 8, "num_kv_shared_layers": 0,
            "pad_token_id": 0, "rms_norm_eps": 1e-6, "rope_parameters": {
                "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
            "sliding_window": 1024, "tie_word_embeddings": True, "top_k_experts": 8, "use_bidirectional_attention": "vision",
            "use_cache": True, "use_double_wide_mlp": False, "vocab_size": 262144, "vocab_size_per_layer_input": 262144},
        "vision_config": {"model_type": "gemma4_vision"}},
    "LFM2.5-8B-A1B": COMMON | {
        "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "conv_L_cache": 3, "conv_bias": False, "hidden_size": 2048,
        "intermediate_size": 7168, "layer_types": ["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
        "max_position_embeddings": 128000, "moe_intermediate_size": 1792, "norm_eps": 1e-5, "norm_topk_prob": True,
        "num_attention_heads": 32, "num_dense_layers": 2, "num_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "rope_theta": 5000000.0, "routed_scaling_factor": 1.0, "tie_word_embeddings": True,
        "use_expert_bias": True, "vocab_size": 128000},
    "gpt-oss-120b": RELEASED["gpt-oss-20b"][1] | {
        "num_hidden_layers": 36, "num_local_experts": 128, "layer_types": ["sliding_attention", "full_attention"] * 18},
    "Qwen3.8-Flash-Next-FP8": {
        "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp", "tie_word_embeddings": False,
        "image_token_id": 248056, "quantization_config": {
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        "text_config": {
            "attention_bias": False, "attention_dropout": 0.0, "eos_token_id": 248044, "full_attention_interval": 4, "hc_count": 4,
            "hc_lowrank": 320, "head_dim": 256, "heads_per_ngram": 8, "hidden_act": "silu", "hidden_size": 2560,
            "indexer_budget": 2048, "indexer_compress_ratio": 4, "indexer_head_dim": 128, "indexer_kv_heads": 1, "indexer_n_heads": 4,
            "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 12, "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
            "make_ngram_vocab_size_divisible_by": 128, "max_position_embeddings": 262144, "model_type": "qwen4_exp_text",
            "moe_intermediate_size": 640, "mtp_num_hidden_layers": 1, "ngram_size": 3, "ngram_vocab_size_base": 20_000_000,
            "norm_topk_prob": True, "num_attention_heads": 24, "num_experts": 512, "num_experts_per_tok": 10, "num_hidden_layers": 48,
            "num_key_value_heads": 2, "output_gate_type": "sigmoid", "ple_conv_kernel_size": 4, "ple_embed_dim": 2560,
            "ple_layer_ids": [2], "rms_norm_eps": 1e-6, "rope_parameters": {
                "mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10_000_000,
                "rope_type": "default"},
            "seed": 1234, "shared_expert_intermediate_size": 640, "split_ngram_parts": 128, "vocab_size": 248320},
        "vision_config": {"model_type": "qwen4_exp_vision"}},
    "DeepSeek-V3": RELEASED["DeepSeek-V3"][1] | {
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}},
    "DeepSeek-V3.2": RELEASED["DeepSeek-V3.2"][1],
}


def fp8(tensors: Tensors) -> Tensors:
    """These bf16 matrices as FP8 in tiles of 128 x 128, each with the f32 scales of its tiles."""
    out: Tensors = {}
    for name, (_, shape) in tensors.items():
        out[name] = "F8_E4M3", shape
        out[f"{name}_scale_inv"] = "F32", (-(-shape[0] // 128), -(-shape[1] // 128))
    return out


def bf16(root: str, **shapes: tuple[int, ...]) -> Tensors:
    """{root + name + ".weight": bf16 of that shape}; __ in a name is a dot."""
    return {f"{root}{name.replace('__', '.')}.weight": ("BF16", shape) for name, shape in shapes.items()}


def qwen3_30b() -> Tensors:
    d, out = 2048, bf16("model.", embed_tokens=(151936, 2048), norm=(2048,)) | bf16("", lm_head=(151936, 2048))
    for i in range(48):
        at = f"model.layers.{i}."
        out |= bf16(at, input_layernorm=(d,), post_attention_layernorm=(d,), mlp__gate=(128, d))
        out |= bf16(f"{at}self_attn.", q_norm=(128,), k_norm=(128,), q_proj=(4096, d), k_proj=(512, d), v_proj=(512, d), o_proj=(d, 4096))
        for e in range(128):
            out |= bf16(f"{at}mlp.experts.{e}.", gate_proj=(768, d), up_proj=(768, d), down_proj=(d, 768))
    return out


def gemma4_26b() -> Tensors:
    d, root = 2816, "model.language_model."
    out = bf16(root, embed_tokens=(262144, d), norm=(d,)) | bf16("model.vision_tower.encoder.", layers__0__mlp__down_proj=(1152, 4304))
    out |= bf16("model.embed_vision.", embedding_projection=(d, 1152))
    for i in range(30):
        at, full = f"{root}layers.{i}.", i % 6 == 5
        head, kv = (512, 2) if full else (256, 8)
        out |= bf16(at, **{f"{name}_layernorm{suffix}": (d,) for name, suffix in (
            ("input", ""), ("post_attention", ""), ("pre_feedforward", ""), ("pre_feedforward", "_2"), ("post_feedforward", ""),
            ("post_feedforward", "_1"), ("post_feedforward", "_2"))})
        out |= bf16(f"{at}self_attn.", q_norm=(head,), k_norm=(head,), q_proj=(16 * head, d), k_proj=(kv * head, d), o_proj=(d, 16 * head))
        out |= {} if full else bf16(f"{at}self_attn.", v_proj=(kv * head, d))
        out |= bf16(at, mlp__gate_proj=(2112, d), mlp__up_proj=(2112, d), mlp__down_proj=(d, 2112), router__proj=(128, d))
        out |= {f"{at}{name}": ("BF16", shape) for name, shape in {
            "layer_scalar": (1,), "router.scale": (d,), "router.per_expert_scale": (128,), "experts.gate_up_proj": (128, 1408, d),
            "experts.down_proj": (128, d, 704)}.items()}
    return out


def lfm2_8b() -> Tensors:
    d, out = 2048, bf16("model.", embed_tokens=(128000, 2048), embedding_norm=(2048,))
    for i, kind in enumerate(CONFIGS["LFM2.5-8B-A1B"]["layer_types"]):
        at = f"model.layers.{i}."
        out |= bf16(at, operator_norm=(d,), ffn_norm=(d,))
        if kind == "conv":
            out |= bf16(f"{at}conv.", conv=(d, 1, 3), in_proj=(3 * d, d), out_proj=(d, d))
        else:
            out |= bf16(f"{at}self_attn.", q_layernorm=(64,), k_layernorm=(64,), q_proj=(d, d), k_proj=(512, d), v_proj=(512, d), out_proj=(d, d))
        if i < 2:
            out |= bf16(f"{at}feed_forward.", w1=(7168, d), w3=(7168, d), w2=(d, 7168))
            continue
        out |= bf16(f"{at}feed_forward.", gate=(32, d)) | {f"{at}feed_forward.expert_bias": ("F32", (32,))}
        for e in range(32):
            out |= bf16(f"{at}feed_forward.experts.{e}.", w1=(1792, d), w3=(1792, d), w2=(d, 1792))
    return out


def gpt_oss_120b() -> Tensors:
    """Experts as MXFP4: 16 bytes of codes and a scale per 32 inputs, by output rows; everything else bf16."""
    d, e, out = 2880, 128, bf16("", lm_head=(201088, 2880)) | bf16("model.", embed_tokens=(201088, 2880), norm=(2880,))
    for i in range(36):
        at = f"model.layers.{i}."
        out |= bf16(at, input_layernorm=(d,), post_attention_layernorm=(d,), mlp__router=(e, d))
        out |= bf16(f"{at}self_attn.", q_proj=(4096, d), k_proj=(512, d), v_proj=(512, d), o_proj=(d, 4096))
        out |= {f"{at}{name}": (dtype, shape) for name, dtype, shape in (
            ("self_attn.q_proj.bias", "BF16", (4096,)), ("self_attn.k_proj.bias", "BF16", (512,)), ("self_attn.v_proj.bias", "BF16", (512,)),
            ("self_attn.o_proj.bias", "BF16", (d,)), ("self_attn.sinks", "BF16", (64,)), ("mlp.router.bias", "BF16", (e,)),
            ("mlp.experts.gate_up_proj_blocks", "U8", (e, 5760, 90, 16)), ("mlp.experts.gate_up_proj_scales", "U8", (e, 5760, 90)),
            ("mlp.experts.gate_up_proj_bias", "BF16", (e, 5760)), ("mlp.experts.down_proj_blocks", "U8", (e, d, 90, 16)),
            ("mlp.experts.down_proj_scales", "U8", (e, d, 90)), ("mlp.experts.down_proj_bias", "BF16", (e, d)))}
    return out


def qwen38_flash_next() -> Tensors:
    """The FP8 release, whose 148,655 tensors of the language model are these: experts one by one and 128 shards of the n-gram table in
    FP8, the latter with one scale, hash constants in I64, everything else in bf16."""
    d, wide, root = 2560, 10240, "model.language_model."
    out = bf16("", lm_head=(248320, d)) | bf16(root, embed_tokens=(248320, d)) | bf16("mtp.", fc=(d, 2 * d))
    out |= bf16("model.visual.", patch_embed__proj=(1152, 3, 2, 16, 16)) | streams(f"{root}hyper_connection_mixer.", False)
    for i in range(48):
        at = f"{root}layers.{i}."
        out |= streams(f"{at}attn_hyper_connection.") | streams(f"{at}mlp_hyper_connection.")
        if i % 4 < 3:
            out |= bf16(f"{at}linear_attn.", in_proj_qkv=(10240, d), in_proj_z=(6144, d), in_proj_a=(48, d), in_proj_b=(48, d),
                        out_proj=(d, 6144), conv1d=(10240, 1, 4), norm=(128,))
            out |= {f"{at}linear_attn.{name}": ("F32", (48,)) for name in ("A_log", "dt_bias")}
        else:
            out |= bf16(f"{at}self_attn.", q_proj=(12288, d), k_proj=(512, d), v_proj=(512, d), o_proj=(d, 6144), q_norm=(256,), k_norm=(256,))
            out |= bf16(f"{at}self_attn.indexer.", index_qk_proj=(640, d), q_layernorm=(128,), k_layernorm=(128,))
        if i == 1:
            out |= bf16(f"{at}ple.", key_proj=(wide, d), value_proj=(d, d),
                        conv1d=(wide, 1, 4), norm_conv=(wide,), norm_key=(wide,), norm_query=(wide,))
            out |= {f"{at}ple.ple_embedding.{name}": ("I64", (n,)) for name, n in (
                ("layer_multipliers", 3), ("ngram_heads_offsets", 16), ("ngram_heads_vocab_sizes", 16))}
            table = f"{at}ple.ple_embedding.ngram_embedding."
            out |= {f"{table}shard_{s}.weight": ("F8_E4M3", (2500012, 160)) for s in range(128)} | {f"{table}weight_scale": ("F32", (1,))}
        out |= bf16(f"{at}mlp.", gate=(512, d), shared_expert_gate=(1, d))
        out |= bf16(f"{at}mlp.shared_expert.", gate_proj=(640, d), up_proj=(640, d), down_proj=(d, 640))
        for e in range(512):
            out |= fp8(bf16(f"{at}mlp.experts.{e}.", gate_proj=(640, d), up_proj=(640, d), down_proj=(d, 640)))
    return out


def streams(root: str, inject: bool = True) -> Tensors:
    """A gated residual over four streams of 2560."""
    out = bf16(root, hc_norm=(10240,), input_mix_weight_down=(320, 10240), input_mix_weight_up=(10240, 320))
    return out | (bf16(root, block_inject_weight=(4, 10240)) if inject else {})


def deepseek_v3() -> Tensors:
    """The FP8 release; layer 61 predicts a second token."""
    d, out = 7168, bf16("", lm_head=(129280, 7168)) | bf16("model.", embed_tokens=(129280, 7168), norm=(7168,))
    for i in range(62):
        at = f"model.layers.{i}."
        out |= bf16(at, input_layernorm=(d,), post_attention_layernorm=(d,), self_attn__q_a_layernorm=(1536,), self_attn__kv_a_layernorm=(512,))
        out |= fp8(bf16(f"{at}self_attn.", q_a_proj=(1536, d), q_b_proj=(24576, 1536), kv_a_proj_with_mqa=(576, d), kv_b_proj=(32768, 512),
                        o_proj=(d, 16384)))
        if i < 3:
            out |= fp8(bf16(f"{at}mlp.", gate_proj=(18432, d), up_proj=(18432, d), down_proj=(d, 18432)))
            continue
        out |= bf16(at, mlp__gate=(256, d)) | {f"{at}mlp.gate.e_score_correction_bias": ("F32", (256,))}
        for mlp in ("shared_experts", *(f"experts.{e}" for e in range(256))):
            out |= fp8(bf16(f"{at}mlp.{mlp}.", gate_proj=(2048, d), up_proj=(2048, d), down_proj=(d, 2048)))
    at = "model.layers.61."
    return out | bf16(at, enorm=(d,), hnorm=(d,), eh_proj=(d, 2 * d), embed_tokens=(129280, d), shared_head__norm=(d,), shared_head__head=(129280, d))


def deepseek_v32() -> Tensors:
    """The FP8 release: V3, and an indexer in each layer."""
    out = deepseek_v3()
    for i in range(62):
        at = f"model.layers.{i}.self_attn.indexer."
        out |= fp8(bf16(at, wq_b=(8192, 1536), wk=(128, 7168))) | bf16(at, weights_proj=(64, 7168))
        out |= {f"{at}k_norm.{kind}": ("F32", (128,)) for kind in ("weight", "bias")}
    return out


TENSORS = {"Qwen3-30B-A3B": qwen3_30b, "Gemma-4-26B-A4B": gemma4_26b, "LFM2.5-8B-A1B": lfm2_8b, "gpt-oss-120b": gpt_oss_120b,
           "Qwen3.8-Flash-Next-FP8": qwen38_flash_next, "DeepSeek-V3": deepseek_v3, "DeepSeek-V3.2": deepseek_v32}


def write_headers(folder, config: dict, tensors: Tensors) -> None:
    """config.json, and one safetensors file that is all hole behind its header."""
    head, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype] * math.prod(shape)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (folder / "config.json").write_text(json.dumps(config))
    with open(folder / "model.safetensors", "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + at)
