"""The whole way from a checkpoint to logits, held against what transformers computed in f32: conversion, container, engine."""
import json
import os
from pathlib import Path

import numpy as np
import pytest

from moegg import registry
from moegg.arch import ConfigReader
from moegg.converters.hf import HFSource
from moegg.converters.plan import make_plan
from moegg.converters.policy import RECIPES
from tests import oracle
from tests.loading import convert_to, open_engine
from tests.reference.forward import forward, greedy
from tests.reference.weights import load_hf

CERTAIN = {"qwen4_exp": 35}     # tokens after which recorded results depend on which of equal scores torch kept (reference/torch_ties.py)


@pytest.fixture(scope="module", params=oracle.NAMES)
def case(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    path = convert_to(oracle.rebuild(request.param, folder / "hf"), folder, "f32")
    return request.param, open_engine(path, ctx=256)


def test_logits_router_and_greedy_tokens_equal_the_oracle(case):
    name, engine = case
    prompts, moe_layers = oracle.load(name)
    assert engine.kv == "f32"
    for p in (p for p in prompts if len(p.ids) <= CERTAIN.get(name, len(p.ids))):
        logits, idx, w, layers = engine.forward(p.ids.tolist())
        p.check(logits)
        assert layers == moe_layers
        if layers:
            p.check_router(idx, w)
        s = engine.session()
        s.sync(p.ids.tolist())
        wanted = p.greedy.tolist()[:CERTAIN[name] - len(p.ids) if name in CERTAIN else None]
        assert continued(s, len(wanted)) == wanted


def continued(session, n):
    """n greedy ids."""
    ids = []
    for _ in range(n):
        ids.append(int(session.logits.argmax()))
        session.eval(ids[-1])
    return ids


@pytest.mark.parametrize("name", CERTAIN)
def test_beyond_ties_the_engine_equals_the_reference(name, tmp_path):
    """Which agrees with the oracle if it keeps what torch keeps of equal scores (reference/test_reference.py)."""
    folder = oracle.rebuild(name, tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text())
    model = registry.find(hf=config["architectures"][0]).describe(ConfigReader(config))
    weights, engine = load_hf(folder, model), open_engine(convert_to(folder, tmp_path, "f32"), ctx=256)
    p = oracle.load(name)[0][2]
    want, (logits, idx, _, layers) = forward(model, weights, p.ids), engine.forward(p.ids.tolist())
    assert np.abs(logits - want.logits).max() <= p.tolerance and layers == want.moe_layers
    np.testing.assert_array_equal(np.sort(idx, -1), np.sort(want.router_idx, -1))
    s = engine.session()
    s.sync(p.ids.tolist())
    assert continued(s, 32) == greedy(model, weights, p.ids, 32)[0]


@pytest.mark.parametrize("split", [[1] * 150, [149, 1], [64, 64, 22], [7, 80, 1, 62]], ids=str)
def test_any_split_of_the_prompt_gives_bit_identical_logits(case, split):
    name, engine = case
    ids = oracle.load(name)[0][2].ids.tolist()
    whole, _, _, _ = engine.forward(ids)
    s, at = engine.session(), 0
    for n in split if len(split) < 150 else split[:40]:
        logits = engine.step([(s, ids[at:at + n])])[0]
        at += n
        same = engine.regime(at) == engine.regime(len(ids))     # longrope: a short sequence has other frequencies
        np.testing.assert_array_equal(logits, whole[at - 1] if same else engine.forward(ids[:at])[0][-1])


@pytest.mark.parametrize("name", ["qwen3_moe_fp8", "bailing_hybrid_fp8", "deepseek_v3_fp8"])
def test_fp8_kept_as_it_is_gives_the_logits_of_its_exact_values(name, tmp_path):
    """The kernels multiply e4m3 by f32 activations, so nothing is rounded that the reference does not round; scales are f32 or e8m0."""
    engine = open_engine(convert_to(oracle.rebuild(name, tmp_path / "hf"), tmp_path, "keep"), ctx=256, kv="f32")
    for p in oracle.load(name)[0]:
        logits, idx, w, _ = engine.forward(p.ids.tolist())
        p.check(logits)
        p.check_router(idx, w)


def test_mimo_gives_the_logits_of_qwen2_without_its_layers_for_more_tokens(tmp_path):
    """transformers has no class for it: qwen2's checkpoint under its names, with such a layer, which is left out and counted."""
    folder = oracle.rebuild("qwen2", tmp_path / "hf")
    config = json.loads((folder / "config.json").read_text()) | {
        "architectures": ["MiMoForCausalLM"], "model_type": "mimo", "attention_bias": True, "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    recipe = json.loads((oracle.FIXTURES / "qwen2" / "weights.json").read_text())
    tensors = {n: oracle.recipe_tensor(recipe, n) for n in recipe["tensors"]}
    more = {n.replace("layers.0", "mtp_layers.0"): x for n, x in tensors.items() if n.startswith("model.layers.0.")}
    more |= {"model.mtp_layers.0.input_proj.weight": np.zeros((64, 128)), "model.mtp_layers.0.final_layernorm.weight": np.ones(64)}
    oracle.write_shards(folder, tensors | more, recipe["dtype"])
    plan = make_plan(HFSource(folder), RECIPES["f32"])
    assert plan.ignored == {"model.mtp_layers.*": len(more)} and f"left out: {len(more)} tensors named model.mtp_layers.*" in " ".join(plan.lines())
    engine = open_engine(convert_to(folder, tmp_path, "f32"), ctx=256)
    for p in oracle.load("qwen2")[0]:
        p.check(engine.forward(p.ids.tolist())[0])


@pytest.mark.skipif("MOEGG_TEST_STORYTELLER" not in os.environ, reason="MOEGG_TEST_STORYTELLER: folder of the trained checkpoint")
def test_storyteller_equals_its_oracle(tmp_path):
    """The demo model's source at f32: logits within 1e-3, router choices, 64 greedy ids."""
    folder = Path(os.environ["MOEGG_TEST_STORYTELLER"])
    data, engine = np.load(folder / "oracle.npz"), open_engine(convert_to(folder, tmp_path, "f32"), ctx=256)
    for i in range(4):
        ids = data[f"p{i}_ids"].tolist()
        logits, idx, _, _ = engine.forward(ids)
        assert np.abs(logits - data[f"p{i}_logits"]).max() <= 1e-3
        np.testing.assert_array_equal(np.sort(idx, -1), np.sort(data[f"p{i}_router_idx"], -1))
        s, greedy = engine.session(), []
        s.sync(ids)
        for _ in range(64):
            greedy.append(int(s.logits.argmax()))
            s.eval(greedy[-1])
        assert greedy == data[f"p{i}_greedy"].tolist()
