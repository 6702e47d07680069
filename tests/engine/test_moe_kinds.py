"""Every kind of router and of expert, as the engine computes it and as tests/reference does: alone, so that none hides in a family."""
import dataclasses

import numpy as np
import pytest

from moegg import kernels
from moegg.arch import Moe, Part, Tensor
from tests import built, tiny
from tests.reference.forward import forward

IDS = np.random.default_rng(8).integers(3, 480, 70).tolist()


def tensor(layer, name, *shape, role="bias"):
    return Tensor(f"layers.{layer}.{name}", shape, role, ())


def changed(router=None, parts=(), **changes):
    """The tiny qwen3-moe, with 8 experts, 3 of a token, and these changes of its MoE layers. router: of its Router, or layer -> changes."""
    model = tiny.describe("qwen3-moe", num_experts=8)

    def moe(m):
        layer = m.experts.layer
        rules = router(layer) if callable(router) else router or {}
        each = {k: v(layer, model.d) if callable(v) else v for k, v in changes.items()}
        experts = dataclasses.replace(m.experts, parts=(*m.experts.parts, *(Part(f"{p}_bias", m.experts.part(p).shape[:1], ()) for p in parts)))
        return dataclasses.replace(m, router=dataclasses.replace(m.router, **rules), experts=experts, **each)
    layers = tuple(dataclasses.replace(x, ffn=moe(x.ffn)) if isinstance(x.ffn, Moe) else x for x in model.layers)
    return dataclasses.replace(model, layers=layers)


def shared(layer, d):
    mlp = tiny.describe("qwen2-moe").layers[0].ffn.shared
    return dataclasses.replace(mlp, **{k: dataclasses.replace(getattr(mlp, k), name=f"layers.{layer}.shared.{k}") for k in ("gate", "up", "down")})


def corrected(layer):
    return {"score": "sigmoid", "select_bias": tensor(layer, "ffn.select_bias", 8), "n_group": 4, "top_group": 2, "group_score": "top2",
            "renormalise": True, "sum_eps": 1e-20, "scale": 2.5}


KINDS = {
    "softmax, not renormalised": changed({"renormalise": False}),
    "softmax, best groups": changed({"n_group": 4, "top_group": 3, "renormalise": False, "scale": 16.0}),
    "softmax, choice corrected": changed(lambda i: {"select_bias": tensor(i, "ffn.select_bias", 8), "sum_min": 0.5}),
    "sigmoid, weights on inputs": changed({"score": "sigmoid", "renormalise": False}, weigh_input=True),
    "sigmoid, choice corrected, groups of two best": changed(corrected),
    "sparsemixer": changed({"score": "sparsemixer", "renormalise": False, "jitter": 0.2, "top_k": 2}),
    "a scale per expert": changed(lambda i: {"expert_scale": tensor(i, "ffn.expert_scale", 8)}),
    "biases everywhere, clamped": changed(lambda i: {"bias": tensor(i, "ffn.router_bias", 8)}, parts=("gate", "up", "down"), act="swiglu_oai"),
    "a bias on down alone": changed(parts=("down",)),
    "a shared expert": changed(shared=shared),
    "a shared expert behind a gate": changed(shared=shared, shared_gate=lambda i, d: tensor(i, "shared.router", d, role="router")),
}


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_choices_equal_the_reference(kind, tmp_path):
    model = KINDS[kind]
    weights = built.write(tmp_path / "m.moegg", model)
    want = forward(model, weights, IDS)
    logits, idx, w, layers = built.open_built(tmp_path / "m.moegg", model, ctx=128).forward(IDS)
    assert layers == want.moe_layers and len({tuple(x) for x in idx.reshape(-1, idx.shape[-1])}) > 5
    np.testing.assert_array_equal(idx, want.router_idx)
    np.testing.assert_allclose(w, want.router_w, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(logits, want.logits, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_levels_splits_and_a_minimal_cache_change_no_bit(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("moegg.engine.engine.own_bytes", lambda: 0)
    model, path = KINDS[kind], tmp_path / "m.moegg"
    built.write(path, model, "q8_0")

    def run(split=(70,), **options):
        engine = built.open_built(path, model, ctx=128, **options)
        s, at, out = engine.session(), 0, []
        for n in split:
            out.append(engine.step([(s, IDS[at:at + n])])[0])
            at += n
        return out[-1], engine
    want, engine = run(n_threads=1)
    assert np.isfinite(want).all() and want.std() > 0.1
    least = engine.plan.fixed + 2 * model.layers[0].ffn.top_k * -(-engine.container.layers[0].record_bytes // 16384) * 16384
    for options in ({"n_threads": 3}, {"split": [1] * 70}, {"split": [64, 6], "ubatch": 7}, {"ram": least, "io": "direct"},
                    {"ram": least, "io": "page-cache", "split": [60, *[1] * 10]}, {"ram": least, "io": "direct", "lookahead": 2}):
        np.testing.assert_array_equal(run(**options)[0], want, str(options))
    try:
        for level in kernels.levels():
            kernels.select(level)
            np.testing.assert_array_equal(run()[0], want, level)
    finally:
        kernels.select(None)


def test_a_choice_between_equal_scores_is_the_lowest_id(tmp_path):
    """Groups too: with a router of zeros the first experts of the first groups win."""
    for kind in ("softmax, best groups", "sigmoid, choice corrected, groups of two best", "sparsemixer", "a scale per expert"):
        model = KINDS[kind]
        zero = {t.name: np.zeros(t.shape, np.float32) for t in model.tensors() if "router" in t.name or "select_bias" in t.name}
        built.write(tmp_path / "m.moegg", model, weights=tiny.weights(model) | zero)
        _, idx, _, _ = built.open_built(tmp_path / "m.moegg", model, ctx=64).forward(IDS[:5])
        assert (idx == np.arange(model.layers[0].ffn.top_k)).all(), kind
        (tmp_path / "m.moegg").unlink()
