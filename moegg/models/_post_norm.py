"""What decoders with norms after attention and MLP, and none before, share: OLMo 2 and 3, EXAONE 4. No architecture.

In GGUF, where layers slide, three do and the fourth does not. Source: llama.cpp src/models/olmo2.cpp and exaone4.cpp.
"""
from typing import Any

from moegg.arch import ConfigReader, Gqa, Layer, Model
from moegg.models._decoder import Decoder


def layer(m: Decoder, i: int, attn: Gqa) -> Layer:
    """Layer i with this attention and a gated MLP: x += norm(attn(x)), x += norm(mlp(x))."""
    return Layer(None, attn, None, m.mlp(i), m.norm(i, "attn_post_norm", "post_attention_layernorm", "post_attention_norm"),
                 m.norm(i, "ffn_post_norm", "post_feedforward_layernorm", "post_ffw_norm"))


def gguf_windows(g: ConfigReader, config: dict[str, Any], window: int) -> dict[str, Any]:
    """Keys of a model whose every fourth layer is full, of gguf_decoder()'s config. The loaders read no list of layers and have one base of
    rope: what a file says of either has to be that."""
    slides = [(i + 1) % 4 > 0 for i in range(config["num_hidden_layers"])]
    g.expect("attention.sliding_window_pattern", 4, slides)
    g.expect("rope.freq_base_swa", config["rope_theta"])
    return {"sliding_window": window, "layer_types": ["sliding_attention" if s else "full_attention" for s in slides]}


def gguf_window_keys(model: Model) -> dict[str, Any]:
    """The way back."""
    slides = [x.attn.window > 0 for x in model.layers]
    return {"attention.sliding_window_pattern": slides if any(slides) else None}
