"""What Granite 3's dense and MoE models share: the four multipliers in GGUF. No architecture."""
from collections.abc import Mapping
from typing import Any

from moegg.arch import ConfigReader, Model


def gguf_multipliers(config: Mapping[str, Any], g: ConfigReader) -> dict[str, float]:
    """Granite's keys of GGUF metadata; where a file has none, or 0, a multiplier is what other decoders do."""
    return {"attention_multiplier": g.float("attention.scale", default=0.0) or config["head_dim"] ** -0.5,
            "embedding_multiplier": g.float("embedding_scale", default=0.0) or 1.0,
            "residual_multiplier": g.float("residual_scale", default=0.0) or 1.0,
            "logits_scaling": g.float("logit_scale", default=0.0) or 1.0}


def gguf_multiplier_keys(model: Model) -> dict[str, float]:
    """The keys that gguf_multipliers() reads."""
    first = model.layers[0]
    return {"attention.scale": first.attn.scale, "embedding_scale": model.embed_scale, "residual_scale": first.scale,
            "logit_scale": 1 / model.logit_scale}
