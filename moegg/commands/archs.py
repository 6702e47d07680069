"""moegg archs - lists the architectures that moegg runs

Usage: moegg archs [options] [NAME]

All of them, or those with NAME in the name of the architecture, a class or a GGUF architecture,
such as qwen3. For each: the checkpoints it stands for (class names in config.json), what it is made
of, how its sources are stored and its chat models talk, and what is not supported. An architecture
of another installed package is listed too.

Options:
  --json                   print one JSON object
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from moegg import registry
from moegg.arch import ConfigReader, Gqa, Layer, Mla, Mlp, Model, Moe, Norm, Streams, Xielu
from moegg.errors import ExitStatus, UnsupportedModel, printable

WIDTH = 100


def main(args: dict[str, Any]) -> ExitStatus:
    rows = [row(registry.find(arch=name)) for name in registry.names()]
    if (part := args["NAME"]) is not None:
        rows = [r for r in rows if part.lower() in " ".join((r["name"], *r["classes"], *r["gguf"])).lower()]
        if not rows:
            raise UnsupportedModel(f"{part}: no architecture of that name; 'moegg archs' lists all", "arch-unknown")
    if args["--json"]:
        print(json.dumps({"architectures": rows}))
        return ExitStatus.OK
    for r in rows:
        print(printable(f"{r['name']}: {', '.join(r['classes'])}"))
        for title, text in (("made of", ", ".join(r["kinds"])), ("sources", ", ".join(r["sources"])),
                            ("chat", "; ".join(map(talk, r["chat"]))), ("not supported", r["not_supported"])):
            for line in textwrap.wrap(f"{title}: {text}", WIDTH, initial_indent="  ", subsequent_indent="    "):
                print(printable(line))
    return ExitStatus.OK


def row(module: ModuleType) -> dict[str, Any]:
    """One architecture in plain JSON types; its kinds are those of its smallest config."""
    model, doc = module.describe(ConfigReader(module.tiny())), " ".join((inspect.getdoc(module) or "").split())
    missing = re.search(r"Not supported: (.*)", doc)
    return {"name": module.NAMES["arch"], "about": doc.split(" Source: ")[0], "classes": list(registry.spelled(module, "hf")),
            "gguf": list(registry.spelled(module, "gguf")), "kinds": list(dict.fromkeys(kinds(model))),
            "sources": list(dict.fromkeys(layouts(module, model))),
            "chat": [vars(chat) for chat in registry.chats(module.NAMES["arch"])], "not_supported": missing[1] if missing else ""}


def talk(chat: dict[str, Any]) -> str:
    """What a module declares of a family's chat models, in words."""
    ends = " or ".join(chat["ends"])
    return (f"{'turns with ' + ', '.join(chat['marks']) + ': ' if chat['marks'] else ''}calls {chat['calls']}"
            + (f", reasoning {chat['reasoning'][0]}" if chat["reasoning"] else "")
            + (f", ends {ends}" if ends else "") + (", a template for files without one" if chat["template"] else ""))


def kinds(model: Model) -> Iterator[str]:
    """Names of what the layers are made of, in order of first use."""
    for layer in model.layers:
        yield from attention_kinds(layer.attn) if isinstance(layer.attn, Gqa) else latent_kinds(layer.attn) if isinstance(
            layer.attn, Mla) else (type(layer.attn).__name__,)
        yield from ffn_kinds(layer.ffn)
        yield from layer_kinds(layer)
    if model.per_layer:
        yield "per-layer inputs"
    if model.logit_softcap:
        yield "logit soft cap"


def attention_kinds(a: Gqa) -> Iterator[str]:
    yield "attention"
    facts = {"sliding windows": a.window, "chunks": a.chunk, "sinks": a.sinks, "gated attention": a.gate, "q and k norms": a.q_norm,
             "value norms": a.v_norm, "keys as values": a.k and not a.v, "shared keys and values": a.kv_from is not None,
             "layers without rope": a.rope is None, "partial rope": a.rope and a.rope.dim < a.head_dim, "attention soft cap": a.softcap,
             "attention temperature": a.temperature, "sparse attention": a.indexer}
    yield from (name for name, there in facts.items() if there)


def latent_kinds(a: Mla) -> Iterator[str]:
    yield "latent attention"
    facts = {"gated attention": a.gate, "sparse attention": a.indexer, "shared choices of positions": a.seen_from is not None}
    yield from (name for name, there in facts.items() if there)


def ffn_kinds(f: Mlp | Moe) -> Iterator[str]:
    if isinstance(f, Mlp):
        yield "gated MLP" if f.gate else "MLP"
        if isinstance(f.act, Xielu):
            yield "activations with learned values"
        return
    yield f"experts ({f.router.score} router)"
    facts = {"shared expert": f.shared and not f.norm, "dense MLP beside experts": f.shared and f.norm, "expert biases": len(f.experts.parts) > 3,
             "expert groups": f.router.n_group > 1}
    yield from (name for name, there in facts.items() if there)


def layer_kinds(layer: Layer) -> Iterator[str]:
    norms = [n for n in (layer.attn_norm, layer.ffn_norm, layer.attn_post_norm, layer.ffn_post_norm) if isinstance(n, Norm)]
    facts = {"LayerNorm": any(n.kind == "layer" for n in norms), "parallel residual": layer.parallel, "residual scale": layer.scale != 1,
             "norms after blocks": layer.attn_post_norm, "normed residual": layer.normed,
             "gated residual streams": isinstance(layer.attn_norm, Streams), "n-gram embeddings": layer.ple}
    yield from (name for name, there in facts.items() if there)


def layouts(module: ModuleType, model: Model) -> Iterator[str]:
    """How sources keep it: formats, and experts one by one, stacked or transposed."""
    ways = {("stacked" if s.stacked else "one by one") + (", transposed" if s.transpose else "")
            for e in model.experts() for p in e.parts for s in p.hf if not p.name.endswith("_bias")}
    yield "safetensors" + (f" (experts {' or '.join(sorted(ways))})" if ways else "")
    yield from (f"GGUF {name}" for name in registry.spelled(module, "gguf"))
