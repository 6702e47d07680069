"""Latent attention over chosen positions: contexts of several chunks, choices that layers share, what is kept, what is scored."""
import json
import shutil

import numpy as np
import pytest

from moegg import kernels
from moegg.planner import kv_bytes
from tests import oracle, tiny
from tests.loading import convert_to, decode, open_engine
from tests.reference import blocks
from tests.reference.forward import State, forward
from tests.reference.streams import best, chosen
from tests.reference.weights import read_safetensors

IDS = np.random.default_rng(8).integers(3, 480, 1100).tolist()
MANY = {"index_topk": 520, "num_hidden_layers": 1, "num_attention_heads": 9, "num_key_value_heads": 9, "index_n_heads": 9}


def last(engine, ids):
    s = engine.session()
    s.sync(ids)
    return s.logits


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sparse")
    return {"many": convert_to(tiny.hf(folder / "many", "deepseek-v32", **MANY), folder, "f32"),
            "shared": convert_to(tiny.hf(folder / "shared", "glm-moe-dsa", num_hidden_layers=6, n_routed_experts=16, indexer_types=[
                "full", "shared", "shared", "full", "full", "shared"]), folder, "q8")}


def test_a_choice_of_more_than_a_chunk_from_more_than_a_part_gives_the_reference(files):
    """520 of 1100 positions: two chunks of attention, two parts of scores where one row has several threads."""
    model = tiny.describe("deepseek-v32", **MANY)
    want = forward(model, tiny.weights(model), IDS[:1100]).logits[-1]
    got = last(open_engine(files["many"], ctx=1536), IDS[:1100])
    assert np.abs(got - want).max() < 5e-4 * max(1, want.std())


def test_threads_levels_and_splits_change_no_bit_of_long_contexts(files):
    path, n = files["many"], 1080
    want = decode(open_engine(path, ctx=1536, n_threads=1), IDS[:n], 3)
    try:
        for level, options in zip(kernels.levels(), ({"n_threads": 3}, {"ubatch": 97}, {"n_threads": 5, "ubatch": 600}, {}), strict=False):
            kernels.select(level)
            np.testing.assert_array_equal(decode(open_engine(path, ctx=1536, **options), IDS[:n], 3), want, level)
    finally:
        kernels.select(None)
    engine = open_engine(path, ctx=1536, n_threads=4)
    a, b = engine.session(), engine.session()
    engine.step([(a, IDS[:n - 1]), (b, IDS[:700])])
    np.testing.assert_array_equal(engine.step([(b, IDS[700:702]), (a, IDS[n - 1:n])])[1], want[0])         # few rows, of unlike depth
    assert a.sync(IDS[:900]).reused == 899 and np.array_equal(a.logits, last(engine, IDS[:900]))


def test_a_shared_choice_survives_groups_of_a_long_prompt(files, monkeypatch):
    """Every layer runs over all groups before the next: what an indexer chose for one must not be what it chose for another."""
    monkeypatch.setattr("moegg.engine.engine.own_bytes", lambda: 0)
    path = files["shared"]
    want = decode(open_engine(path, ctx=256, ubatch=16), IDS[:200], 6)
    engine = open_engine(path, ctx=256, ubatch=16)
    size = max(-(-layer.record_bytes // 16384) * 16384 for layer in engine.container.layers)
    small = open_engine(path, ctx=256, ubatch=16, ram=engine.plan.fixed + 12 * size)
    assert small.plan.groups > 8 and not small.plan.all_fits
    np.testing.assert_array_equal(decode(small, IDS[:200], 6), want)
    model = tiny.describe("glm-moe-dsa", num_hidden_layers=6, n_routed_experts=16,
                          indexer_types=["full", "shared", "shared", "full", "full", "shared"])
    state = State()
    forward(model, tiny.weights(model), IDS[:60], state)
    assert sorted(state.seen) == [0, 3, 4] and [x.attn.seen_from for x in model.layers] == [None, 0, 0, None, None, 4]


def test_layers_that_share_keep_no_index_keys_and_choose_nothing(files):
    program = open_engine(files["shared"], ctx=256).program
    assert [sum(op.kind == kind for op in program.ops) for kind in ("index", "choose", "sparse", "attention")] == [3, 3, 6, 0]
    own, shared = program.model.layers[0].attn, program.model.layers[1].attn
    assert own.indexer.weights and shared.indexer is None
    f16, f32 = (kv_bytes(own, 1024, 64, kv) - kv_bytes(shared, 1024, 64, kv) for kv in ("f16", "f32"))
    assert (f16, f32) == (2 * 14 * (1024 + 16), 4 * 14 * (1024 + 16))         # a key of 14 values per position, kept as keys are


@pytest.mark.parametrize("kv", ["f16", "f32"])
def test_up_to_the_budget_sparse_attention_is_dense_attention(kv, tmp_path):
    """Not a bit differs, so a short prompt gets what DeepSeek-V3 would give with these weights; one token more is another matter."""
    sparse = tiny.hf(tmp_path / "sparse", "deepseek-v32", index_topk=64, num_attention_heads=9, num_key_value_heads=9)
    dense = tmp_path / "dense"
    shutil.copytree(sparse, dense)
    config = json.loads((dense / "config.json").read_text())
    config = {k: v for k, v in config.items() if not k.startswith("index")} | {"architectures": ["DeepseekV3ForCausalLM"],
                                                                               "model_type": "deepseek_v3"}
    (dense / "config.json").write_text(json.dumps(config))
    arrays = {n: x for n, x in read_safetensors(dense).items() if ".indexer." not in n}
    oracle.write_safetensors(dense / "model.safetensors", arrays, "F32")
    a, b = (open_engine(convert_to(folder, tmp_path, "f32"), ctx=128, kv=kv).forward(IDS[:70])[0] for folder in (sparse, dense))
    np.testing.assert_array_equal(a[:64], b[:64])
    assert (a[64:] != b[64:]).any(-1).all()


def test_heads_of_negative_weight_and_equal_scores():
    """Scores below zero lose against the zeros of positions that no head likes; of equal ones the lower positions are seen."""
    q, k = np.ones((1, 2, 1), np.float32), np.array([[1], [-1], [2], [-1]], np.float32)
    scores = blocks.index_scores(q, k, np.array([[1, -3]], np.float32), 0.5)[0]
    assert scores.tolist() == [-1, 0, -2, 0] and best(scores, 2).tolist() == [1, 3]
    assert chosen(scores, 3, 3, 1).tolist() == [True, True, False, True]
    assert chosen(np.zeros(4, np.float32), 3, 2, 1).tolist() == [True, True, False, False]
