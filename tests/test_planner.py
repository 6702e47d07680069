"""MemoryPlan: sizes from the description alone, the planned context, and refusals that name what fits."""
import pytest

from moegg.errors import BudgetTooSmall
from moegg.planner import DEFAULT_CTX, kv_bytes, kv_positions, plan
from tests import tiny

GIB = 1 << 30


def test_kv_bytes_count_keys_and_padded_values():
    a = tiny.describe("llama").layers[0].attn
    pad = -(-a.head_dim // 16) * 16
    assert kv_positions(a, 100, 512) == 128
    assert kv_bytes(a, 100, 512, "f16") == a.n_kv_head * 128 * (a.head_dim + pad) * 2
    assert kv_bytes(a, 100, 512, "f32") == 2 * kv_bytes(a, 100, 512, "f16")


def test_a_sliding_window_keeps_a_ring_not_the_whole_context():
    window = next(x.attn for x in tiny.describe("gemma3").layers if x.attn.window)
    assert kv_positions(window, 100_000, 64) == -(-(window.window + 64) // 64) * 64
    assert kv_positions(window, 40, 64) == 64


def test_the_planned_context_is_the_trained_one_or_8192_or_what_fits():
    model = tiny.describe("llama", max_position_embeddings=300)
    assert plan(model, 0, 0).ctx == 300
    long = tiny.describe("llama", max_position_embeddings=1 << 20)
    assert plan(long, 0, 0).ctx == DEFAULT_CTX
    tight = plan(long, 0, 0, available=plan(long, 0, 0).anonymous)
    assert 64 <= tight.ctx < DEFAULT_CTX and tight.anonymous <= plan(long, 0, 0).anonymous // 2


def test_a_context_that_does_not_fit_names_the_longest_that_does():
    model = tiny.describe("llama")
    with pytest.raises(BudgetTooSmall) as e:
        plan(model, 0, 0, ctx=1 << 28, available=GIB)
    longest = int(str(e.value).split("fits is ")[1].split()[0])
    assert plan(model, 0, 0, ctx=longest, available=GIB).anonymous <= GIB
    with pytest.raises(BudgetTooSmall):
        plan(model, 0, 0, ctx=longest + 64, available=GIB)


def test_the_table_adds_up():
    p = plan(tiny.describe("qwen3-moe"), 3 * GIB, 5 * GIB, ctx=512)
    assert p.total == 8 * GIB + p.kv_state + p.rope_tables + p.scratch
    assert p.to_dict()["total"] == p.total and "8.0 GiB" in p.lines()[-1]
