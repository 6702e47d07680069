"""Whole models: forward() walks a moegg.arch.Model with the blocks of blocks.py; greedy() continues a prompt."""
from dataclasses import dataclass, field

import numpy as np

from moegg.arch import Gqa, Mla, Mlp, Streams
from tests.reference import blocks, mixers, streams

F32 = np.float32


@dataclass
class State:
    """Keys (before rope) and values [S, G, Dh] per layer, the states of mixers and the raw keys of indexers, of `n` positions evaluated so
    far; their token ids, the past of each n-gram convolution, and what the indexers let the last call's positions see [T, S]."""
    n: int = 0
    kv: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    mixers: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    past: dict[int, np.ndarray] = field(default_factory=dict)
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    index: dict[int, np.ndarray] = field(default_factory=dict)
    seen: dict[int, np.ndarray] = field(default_factory=dict)


@dataclass
class Result:
    """logits [T, V]; hidden: L + 1 arrays [T, D]: the residual (all its streams) entering each layer, last after the final norm; router_idx and
    router_w [M, T, K] by descending weight, of the M MoE layers `moe_layers`."""
    logits: np.ndarray
    hidden: list[np.ndarray]
    moe_layers: list[int]
    router_idx: np.ndarray
    router_w: np.ndarray


def forward(model, weights, ids, state=None):
    """Evaluate ids [T] after the positions already in `state` (which it extends). weights: name -> f32, as load() gives them."""
    state = State() if state is None else state
    ids = np.asarray(ids, np.int64)
    total = state.n + len(ids)
    x = np.tile(weights["embed"][ids] * F32(model.embed_scale), model.streams)
    state.ids = np.concatenate([state.ids, ids])
    inputs = _per_layer_inputs(model, weights, x, ids) if model.per_layer else None
    hidden, routed = [], []

    def ffn(layer, number, h, x=None):
        if isinstance(layer.ffn, Mlp):
            return _mlp(layer.ffn, weights, h)
        y, idx, w = _moe(layer.ffn, weights, h, x)
        routed.append((number, idx, w))
        return y
    for number, layer in enumerate(model.layers):
        hidden.append(x)
        def attn(h, layer=layer, number=number):
            return _mixed(layer.attn, weights, h, number, state, total)
        if layer.ple:
            added, state.past[number] = streams.ple(layer.ple, weights, x, model.d, state.ids, state.past.get(number))
            x = x + added
        if isinstance(layer.attn_norm, Streams):
            for reader, block in ((layer.attn_norm, attn), (layer.ffn_norm, lambda h, a=layer, n=number: ffn(a, n, h))):
                h, factors = streams.read(reader, weights, x, model.d)
                x = streams.write(x, block(h), factors)
            continue
        if layer.normed:
            (a, b), (c, d) = layer.normed
            h = _norm(layer.attn_norm, weights, x)
            h = _norm(layer.ffn_norm, weights, F32(a) * h + F32(b) * attn(h))
            x = F32(c) * h + F32(d) * ffn(layer, number, h)
            continue
        h = _norm(layer.attn_norm, weights, x)
        x = x + F32(layer.scale) * _norm(layer.attn_post_norm, weights, attn(h))
        h = h if layer.parallel else _norm(layer.ffn_norm, weights, x)
        x = x + F32(layer.scale) * _norm(layer.ffn_post_norm, weights, ffn(layer, number, h, x))
        if g := layer.per_layer:
            y = blocks.act(g.act, _linear(x, weights, g.gate, None)) * inputs[:, number]
            x = x + _norm(g.post_norm, weights, _linear(y, weights, g.proj, None))
        if layer.out_scale:
            x = x * weights[layer.out_scale.name]
    final = model.final_norm
    x = streams.read(final, weights, x, model.d)[0] if isinstance(final, Streams) else _norm(final, weights, x)
    hidden.append(x)
    logits = _linear(x, weights, model.head or model.embed, model.head_bias)
    logits = logits * F32(model.logit_scale)
    if model.logit_softcap:
        logits = F32(model.logit_softcap) * np.tanh(logits / F32(model.logit_softcap))
    state.n = total
    return Result(logits, hidden, [n for n, _, _ in routed], np.array([i for _, i, _ in routed]),
                  np.array([w for _, _, w in routed]))


def _per_layer_inputs(model, weights, x, ids):
    """[T, L, P] of the embedded tokens x [T, D]."""
    p, width = model.per_layer, model.per_layer.norm.weight.shape[0]
    context = (_linear(x, weights, p.proj, None) * F32(model.d ** -0.5)).reshape(len(x), -1, width)
    tokens = weights[p.table.name][ids].reshape(context.shape) * F32(width ** 0.5)
    return (_norm(p.norm, weights, context) + tokens) * F32(0.5 ** 0.5)


def greedy(model, weights, ids, n):
    """(n greedy ids, the gap between best and second logit at each): starts anew when the rope of the sequence changes."""
    ids, out, gaps, state = list(map(int, ids)), [], [], State()
    limits = sorted({limit for layer in model.layers if isinstance(layer.attn, Gqa) and layer.attn.rope for limit, _, _ in layer.attn.rope.regimes()})
    todo = ids
    for _ in range(n):
        logits = forward(model, weights, todo, state).logits[-1]
        best = int(np.argmax(logits))
        second, first = np.partition(logits, -2)[-2:]
        out.append(best)
        gaps.append(float(first - second))
        ids, todo = [*ids, best], [best]
        if any(state.n <= limit < len(ids) for limit in limits):
            state, todo = State(), ids
    return out, gaps


def _norm(norm, weights, x):
    if norm is None:
        return x
    w, b = (weights[t.name] if t else None for t in (norm.weight, norm.bias))
    return blocks.layer_norm(x, w, b, norm.eps) if norm.kind == "layer" else blocks.rms_norm(x, w, norm.eps)


def _qk_norm(norm, weights, x):
    """x [T, H, Dh]: over each head, or over all of them if the weight is that wide."""
    if norm is None or norm.weight is None or norm.weight.shape == x.shape[-1:]:
        return _norm(norm, weights, x)
    return _norm(norm, weights, x.reshape(len(x), -1)).reshape(x.shape)


def _route(r, weights, x):
    extra = {k: weights[t.name] if (t := getattr(r, k)) else None for k in ("select_bias", "expert_scale")}
    rules = {k: getattr(r, k) for k in ("score", "n_group", "top_group", "group_score", "renormalise", "sum_eps", "sum_min", "scale", "jitter")}
    return blocks.route(_linear(x, weights, r.weight, r.bias), r.top_k, **extra, **rules)


def _moe(m, weights, x, residual):
    """(output, ids, weights) from the normed input x and the residual stream."""
    idx, w = _route(m.router, weights, _norm(m.router_norm, weights, residual) * F32(m.router_scale) if m.router_norm else x)
    own = _norm(m.norm, weights, residual) if m.norm else x
    parts = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")
    y = blocks.moe(own, idx, w, lambda e: [weights.get(f"layers.{m.experts.layer}.experts.{e}.{p}") for p in parts], m.act, m.weigh_input)
    y = _norm(m.post_norm, weights, y)
    if m.shared:
        gate = blocks.sigmoid(x @ weights[m.shared_gate.name])[:, None] if m.shared_gate else F32(1)
        y = y + _norm(m.shared_post_norm, weights, gate * _mlp(m.shared, weights, x))
    return y, idx, w


def _linear(x, weights, tensor, bias):
    return blocks.linear(x, weights[tensor.name], weights[bias.name] if bias else None)


def _mlp(m, weights, x):
    name = m.act if isinstance(m.act, str) else ("xielu", [weights[t.name][0] for t in (m.act.alpha_p, m.act.alpha_n, m.act.beta, m.act.eps)])
    return blocks.mlp(x, weights[m.gate.name] if m.gate else None, weights[m.up.name], weights[m.down.name], name,
                      *(weights[b.name] if b else None for b in (m.gate_bias, m.up_bias, m.down_bias)))


def _mixed(block, weights, x, number, state, total):
    if isinstance(block, Gqa):
        return _attention(block, weights, x, number, state, total)
    if isinstance(block, Mla):
        return _latent(block, weights, x, number, state, total)
    y, state.mixers[number] = mixers.mix(block, weights, x, state.mixers.get(number))
    return y


def _latent(a, weights, x, number, state, total):
    """The form that the formula has, with keys and values of every head; the state keeps [c | kr] before rope."""
    w = {k: weights[t.name] for k in ("kv", "k_up", "v_up") if (t := getattr(a, k))}
    short = x if a.q_down is None else _norm(a.q_norm, weights, _linear(x, weights, a.q_down, a.q_down_bias))
    q = blocks.linear(short, weights[a.q.name]).reshape(len(x), a.n_head, -1)
    row = blocks.linear(x, w["kv"], weights[a.kv_bias.name] if a.kv_bias else None)
    c, kr = _norm(a.kv_norm, weights, row[:, :a.rank]), row[:, a.rank:]
    if number in state.kv:
        c, kr = (np.concatenate(pair) for pair in zip(state.kv[number], (c, kr), strict=True))
    state.kv[number] = c, kr
    kr, qr = kr[:, None], q[..., a.nope:]
    if a.rope:
        inv, factor = next((inv, factor) for limit, inv, factor in a.rope.regimes() if total <= limit)
        qr = blocks.rope(qr, np.arange(total - len(x), total), inv, factor, a.rope.interleaved)
        kr = blocks.rope(kr, np.arange(total), inv, factor, a.rope.interleaved)
    k = np.einsum("hrn,sr->shn", w["k_up"].reshape(a.n_head, a.rank, a.nope), c)
    v = np.einsum("hvr,sr->shv", w["v_up"].reshape(a.n_head, a.v_dim, a.rank), c)
    k = np.concatenate([k, np.broadcast_to(kr, (total, a.n_head, a.rope_dim))], -1)
    seen = _seen(a.indexer, weights, x, short, number, state, total) if a.indexer else state.seen.get(a.seen_from)
    y = blocks.attention(np.concatenate([q[..., :a.nope], qr], -1), k, v, a.scale, seen=seen)
    if a.gate:
        y = blocks.gate_heads(y, _linear(x, weights, a.gate, None))
    return _linear(y, weights, a.o, a.o_bias)


def _attention(a, weights, x, number, state, total):
    q, k, v = (_linear(x, weights, t, b).reshape(len(x), -1, a.head_dim) if t else None
               for t, b in ((a.q, a.q_bias), (a.k, a.k_bias), (a.v, a.v_bias)))
    if not a.norm_last:
        q = _qk_norm(a.q_norm, weights, q)
    if a.kv_from is None:
        v = _norm(a.v_norm, weights, k if v is None else v)
        k = k if a.norm_last else _qk_norm(a.k_norm, weights, k)
        if number in state.kv:
            k, v = (np.concatenate(pair) for pair in zip(state.kv[number], (k, v), strict=True))
        state.kv[number] = k, v
    else:
        k, v = state.kv[a.kv_from]
    here = np.arange(total - len(x), total)
    if a.rope:
        inv, factor = next((inv, factor) for limit, inv, factor in a.rope.regimes() if total <= limit)
        q = blocks.rope(q, here, inv, factor, a.rope.interleaved)
        k = blocks.rope(k, np.arange(total), inv, factor, a.rope.interleaved)
    if a.norm_last:
        q, k = _qk_norm(a.q_norm, weights, q), _qk_norm(a.k_norm, weights, k)
    if a.temperature:
        q = q * blocks.temperature(here, *a.temperature)[:, None, None]
    seen = _seen(a.indexer, weights, x, x, number, state, total) if a.indexer else None
    y = blocks.attention(q, k, v, a.scale, a.window, a.softcap, a.chunk, weights[a.sinks.name] if a.sinks else None, seen)
    if a.gate:
        y = y * blocks.act("sigmoid", _linear(x, weights, a.gate, None))
    return _linear(y, weights, a.o, a.o_bias)


def _seen(x, weights, h, short, number, state, total):
    """The keys that each of the last positions may see by its indexer, [T, S]. h, short [T, ...]: what keys and queries are made of."""
    first = total - len(h)
    raw = _linear(h, weights, x.k, None)
    raw = state.index[number] = np.concatenate([state.index[number], raw]) if number in state.index else raw
    inv, factor = next((inv, factor) for limit, inv, factor in x.rope.regimes() if total <= limit)
    q = _norm(x.q_norm, weights, _linear(short, weights, x.q, None).reshape(len(h), -1, x.dim))
    q = blocks.rope(q, np.arange(first, total), inv, factor, x.rope.interleaved)
    n = total // x.ratio
    keys = _norm(x.k_norm, weights, raw[:n * x.ratio].reshape(n, x.ratio, x.dim).mean(1))[:, None]
    keys = blocks.rope(keys, np.arange(n) * x.ratio, inv, factor, x.rope.interleaved)[:, 0]
    heads = _linear(h, weights, x.weights, None) if x.weights else np.ones((len(h), x.n_head), F32)
    scores = blocks.index_scores(q, keys, heads, x.scale)
    out = np.zeros((len(h), total), bool)
    for i in range(len(h)):
        out[i, :first + i + 1] = streams.chosen(scores[i], first + i, x.budget, x.ratio)
    state.seen[number] = out
    return out
