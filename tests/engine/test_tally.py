"""Calibration: the sums are those of plain numpy over the inputs of each matrix, whatever the threads; nothing changes without it."""
import numpy as np
import pytest

from tests import tiny
from tests.loading import convert_to, open_engine
from tests.reference import weights

IDS = np.random.default_rng(3).integers(3, 480, 90).tolist()


@pytest.fixture(scope="module", params=["qwen3-moe", "gemma3"])
def folder(request, tmp_path_factory):
    return tiny.hf(tmp_path_factory.mktemp("tally") / "hf", request.param)


@pytest.fixture(scope="module")
def file(folder, tmp_path_factory):
    return convert_to(folder, tmp_path_factory.mktemp("file"), "f32")


def tallies(file, **options):
    engine = open_engine(file, ctx=128, calibrate=True, **options)
    for _ in engine.positions(IDS):
        pass
    return engine, engine.tallies


def test_sums_do_not_depend_on_threads_or_steps_and_logits_do_not_change(file):
    want = tallies(file, n_threads=1)[1]
    np.testing.assert_array_equal(tallies(file)[0].forward(IDS)[0], open_engine(file, ctx=128).forward(IDS)[0])
    for options in ({"n_threads": 3}, {"n_threads": 2, "ubatch": 7}):
        got = tallies(file, **options)[1]
        assert got.keys() == want.keys()
        for name, t in got.items():
            np.testing.assert_array_equal(t.rows, want[name].rows, name)
            np.testing.assert_array_equal(t.squares, want[name].squares, name)


def test_every_matrix_that_is_multiplied_has_a_tally_and_every_token_is_counted(file):
    engine, got = tallies(file)
    matrices = {t.name: t.shape[1] for t in engine.model.tensors() if len(t.shape) == 2 and t.role != "router" and not t.gather}
    matrices |= {f"layers.{e.layer}.experts.{p.name}": p.shape[1] for e in engine.model.experts() for p in e.parts}
    assert {name: t.squares.shape[1] for name, t in got.items()} == matrices
    top_k = {e.layer: engine.program.moe[i].router.top_k for i, e in enumerate(engine.model.experts())}
    for name, t in got.items():
        if ".experts." in name:
            assert t.rows.sum() == top_k[int(name.split(".")[1])] * len(IDS)
        else:
            assert t.rows.tolist() == [len(IDS)]
        assert np.isfinite(t.squares).all() and (t.squares.sum(1) > 0).tolist() == (t.rows > 0).tolist()


def test_the_inputs_of_the_first_layer_are_the_normed_embeddings(folder, file):
    engine, got = tallies(file)
    model, w = engine.model, weights.load_hf(folder, engine.model)
    x = w[model.embed.name][IDS].astype(np.float64) * model.embed_scale
    norm = model.layers[0].attn_norm
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + norm.eps) * w[norm.weight.name]
    np.testing.assert_allclose(got["layers.0.attn.q"].squares[0], (x * x).sum(0), rtol=1e-5)
    assert got["layers.0.attn.k"] is got["layers.0.attn.q"]


def test_experts_read_what_was_routed_to_them(file):
    engine, got = tallies(file)
    if not engine.program.moe:
        pytest.skip("no experts")
    idx = engine.forward(IDS)[1]
    for i, layer in enumerate(engine.program.moe_layers):
        counts = np.bincount(idx[i].ravel(), minlength=engine.program.moe[i].experts.n)
        np.testing.assert_array_equal(got[f"layers.{layer}.experts.gate"].rows, 2 * counts)        # forward() has run once more
        np.testing.assert_array_equal(got[f"layers.{layer}.experts.down"].rows, 2 * counts)
