"""Makes a folder of tests/fixtures/oracles from a tiny config: weights by recipe, results by transformers' own class on the CPU.

    PYTHON tests/make_oracle.py my_arch/config.json         PYTHON: any with torch, transformers, safetensors and numpy; moegg is not needed

Writes generation_config.json, weights.json, oracle.npz and oracle.json beside the config; their form is in fixtures/oracles/README.md.
The config is one as a release spells it, tiny: about 4 layers, hidden size 64, vocabulary 512, windows and chunks far below 150, an
eps of 1e-2 so that a wrong one shows. Seeds are tried until no greedy choice is a near tie. Refuses checkpoints that transformers does
not load to the last tensor. Tensors get the names under which transformers saves them; where a release has others, rename them with
--rename OLD=NEW (a regular expression and its replacement). An architecture that transformers does not have, but an equal of, is
computed by that: its config is equal.json, beside config.json.
"""
import argparse
import hashlib
import json
import math
import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests import oracle  # noqa: E402

NEW, NEAR, LEAST = 32, 5e-3, 1e-3       # greedy tokens; gap of a near tie; the smallest tolerance
ROUTER = re.compile(r"Router$")         # classes whose result is (logits, weights, ids)
INDEXER = re.compile(r"Indexer$")       # classes whose result is the positions that queries see, or more beside them


def kind(name, fresh):
    """The recipe of one tensor: [shape, kind, parameters..., options]. fresh: its value in an untrained model."""
    leaf, shape, fan = name.rsplit(".", 1)[-1], list(fresh.shape), (1, *fresh.shape)[-1]
    digits = lambda x: float(f"{x:.6g}")        # noqa: E731
    if leaf == "A_log":
        return [shape, "uniform", 1.95, 0.05, {"fn": "log", "dtype": "F32"}]
    if leaf == "dt_bias":
        return [shape, "normal", 1.0, -2.0, {"dtype": "F32"}]
    if "correction_bias" in name:
        return [shape, "normal", 0.2, {"dtype": "F32"}]
    if leaf in ("beta", "eps"):             # numbers of one layer; an eps far from 0, so that a wrong one shows
        return [shape, "uniform", 0.3, {"beta": 0.4, "eps": -0.5}[leaf]]
    if leaf == "bias" or len(shape) == 1:
        base = float(fresh[0]) if leaf != "bias" and "norm" in name else 0.0
        return [shape, "normal", 0.2, base] if base else [shape, "normal", 0.2]
    if "conv" in name:
        return [shape, "normal", 0.6]
    if "embed" in name or "lm_head" in name:
        return [shape, "normal", digits(3 / math.sqrt(fan))]
    return [shape, "normal", digits((2.0 if name.endswith(("gate.weight", "router.weight")) else 1.4) / math.sqrt(fan))]


def recipe(model_class, config, seed, rename):
    """A recipe for every tensor that the class saves."""
    with tempfile.TemporaryDirectory() as folder:
        model_class._from_config(config, dtype=torch.float32).save_pretrained(folder)
        fresh = load_file(Path(folder) / "model.safetensors")
    tensors = {}
    for name in sorted(fresh, key=lambda n: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", n)]):
        new = name
        for old, to in rename:
            new = re.sub(old, to, new)
        tensors[new] = kind(name, fresh[name])
    out = {"seed": seed, "dtype": "BF16", "format": "pt", "shards": 1, "sha256": "", "tensors": tensors}
    blobs = (oracle.recipe_tensor(out, n)[2] for n in tensors)
    return out | {"sha256": hashlib.sha256(b"".join(blobs)).hexdigest()}


def load(model_class, folder, rules):
    """The model in f32, every tensor of the checkpoint in its place and as it is in the file."""
    oracle.write_shards(folder, {n: oracle.recipe_tensor(rules, n) for n in rules["tensors"]}, rules["dtype"])
    model, info = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True,
                                              experts_implementation="eager")
    wrong = {k: v for k, v in info.items() if v}
    if wrong:
        sys.exit(f"{folder}: the checkpoint does not fit the class: {wrong}")
    with tempfile.TemporaryDirectory() as again:
        model.save_pretrained(again)
        kept, given = load_file(Path(again) / "model.safetensors"), load_file(folder / "model.safetensors")
    changed = [n for n in kept.keys() & given.keys() if not torch.equal(kept[n], given[n].float())]
    if changed:
        sys.exit(f"{folder}: the class changes {changed} while it loads them (a row of padding? leave pad_token_id out)")
    return model.eval()


class Routers:
    """Records what the routers of a model chose, layer by layer."""

    def __init__(self, model):
        self.found = {}
        found = [(n, m) for n, m in model.named_modules() if ROUTER.search(type(m).__name__)]
        self.layers = [int(re.search(r"layers\.(\d+)\.", n).group(1)) for n, _ in found]
        for layer, (_, module) in zip(self.layers, found, strict=True):
            module.register_forward_hook(lambda _m, _i, out, layer=layer: self.found.update({layer: (out[2], out[1])}))

    def take(self):
        """(ids, weights) [M, S, K] by descending weight."""
        ids, w = (torch.stack([self.found[i][j].reshape(-1, self.found[i][0].shape[-1]) for i in self.layers]) for j in (0, 1))
        order = torch.sort(w, dim=-1, descending=True, stable=True).indices
        return ids.gather(-1, order).numpy(), w.gather(-1, order).float().numpy()


class Indexers:
    """Records what the indexers of a model chose, if they give positions [1, S, k]."""

    def __init__(self, model):
        self.found = {}
        for name, module in model.named_modules():
            if INDEXER.search(type(module).__name__):
                layer = int(re.search(r"layers\.(\d+)\.", name).group(1))
                module.register_forward_hook(lambda _m, _i, out, layer=layer: self.found.update({layer: out}))

    def take(self):
        """{layer: [S, k] positions, ascending; -1 for those behind the query, which it does not see}."""
        out = {}
        for layer, ids in self.found.items():
            if isinstance(ids, torch.Tensor) and ids.dtype == torch.int32:
                ids = ids[0]
                out[layer] = torch.where(ids <= torch.arange(len(ids))[:, None], ids, -1).sort(-1).values.numpy().astype(np.int16)
        return out


def run(model, prompts):
    """(arrays of oracle.npz, notes per prompt)."""
    routers, indexers, data, notes = Routers(model), Indexers(model), {}, []
    data["moe_layers"] = np.array(routers.layers, np.int16)
    model.generation_config = transformers.GenerationConfig(eos_token_id=None, pad_token_id=0)
    for i, ids in enumerate(prompts):
        out = model(input_ids=torch.tensor([ids]), use_cache=False, output_hidden_states=True)
        logits, p = out.logits[0].float(), f"p{i}_"
        if routers.layers:
            chosen, w = routers.take()
            data |= {f"{p}router_idx": chosen.astype(np.int16), f"{p}router_w": w.astype(np.float16)}
        data |= {f"{p}seen_{layer}": ids for layer, ids in indexers.take().items()}
        done = model.generate(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long), max_new_tokens=NEW,
                              do_sample=False, output_logits=True, return_dict_in_generate=True)
        new, cached = done.sequences[0, len(ids):], torch.cat([x.float() for x in done.logits])
        whole = model(input_ids=torch.cat([torch.tensor(ids), new[:-1]])[None], use_cache=False).logits[0, len(ids) - 1:].float()
        (best, second), (gbest, gsecond) = (x.topk(2, -1).values.T for x in (logits, cached))
        hidden = [x[0].double() for x in out.hidden_states]
        data |= {f"{p}{key}": x.numpy().astype(dtype) for key, x, dtype in (
            ("ids", torch.tensor(ids), np.int16), ("logits_tail", logits[-3:], np.float32), ("argmax", logits.argmax(-1), np.int16),
            ("argmax_logit", best, np.float32), ("argmax_gap", best - second, np.float32),
            ("logsumexp", logits.double().logsumexp(-1), np.float32), ("greedy", new, np.int16), ("greedy_gap", gbest - gsecond, np.float32),
            ("hidden_rms", torch.stack([x.square().mean().sqrt() for x in hidden]), np.float32),
            ("hidden_last8", torch.stack([x[-1, :8] for x in hidden]), np.float32))}
        notes.append({"len": len(ids), "logit_std": float(logits.std()), "min_greedy_gap": float((gbest - gsecond).min()),
                      "distinct_greedy": len(set(new.tolist())), "cached_vs_uncached_maxdiff": float((whole - cached).abs().max())})
    return data, notes


def unsuitable(data, notes, ends):
    """Why a seed makes no good fixture, or ''."""
    gap = min(n["min_greedy_gap"] for n in notes)
    if gap < NEAR:
        return f"greedy gap {gap:.1e}"
    made = ends & {int(x) for i in range(len(notes)) for x in data[f"p{i}_greedy"]}
    return f"ids {sorted(made)} produced" if made else ""


def rounded_up(x):
    """To one digit."""
    step = 10.0 ** math.floor(math.log10(x) + 1e-9)
    return float(f"{math.ceil(x / step - 1e-9) * step:.0e}")


@torch.no_grad()
def main():
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("config", type=Path)
    ask.add_argument("--rename", action="append", default=[], metavar="OLD=NEW")
    args = ask.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folder, rename = args.config.parent, [tuple(x.split("=", 1)) for x in args.rename]
    equal = folder / "equal.json" if (folder / "equal.json").exists() else args.config
    prompts, example = [p.ids.tolist() for p in oracle.load("llama")[0]], oracle.FIXTURES / "llama" / "generation_config.json"
    shutil.copyfile(example, folder / "generation_config.json")
    ends, skipped = set(json.loads(example.read_text())["eos_token_id"]), []
    with tempfile.TemporaryDirectory() as work:
        shutil.copyfile(equal, Path(work) / "config.json")
        config = transformers.AutoConfig.from_pretrained(work)
        model_class = getattr(transformers, json.loads(equal.read_text())["architectures"][0])
        for seed in range(30):
            rules = recipe(model_class, config, seed, rename)
            model = load(model_class, Path(work), rules)
            data, notes = run(model, prompts)
            if not (why := unsuitable(data, notes, ends)):
                break
            skipped.append(f"{seed}: {why}")
        else:
            sys.exit(f"{args.config}: no seed of 30 will do: {skipped}")
        last = torch.tensor([prompts[-1]])
        logits = model(input_ids=last, use_cache=False).logits
        exact = model.double()(input_ids=last, use_cache=False).logits
    noise = max(float((exact - logits).abs().max()), *(n["cached_vs_uncached_maxdiff"] for n in notes))
    head = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in rules.items() if k != "tensors")
    body = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in rules["tensors"].items())
    (folder / "weights.json").write_text("{" + head + ',\n"tensors": {\n' + body + "\n}}\n")
    np.savez_compressed(folder / "oracle.npz", **data)
    (folder / "oracle.json").write_text(json.dumps({
        "class": model_class.__name__, "seed": seed, "seeds_skipped": skipped, "transformers": transformers.__version__,
        "torch": torch.__version__, "prompts": notes, "tolerance": {"noise": noise, "logits_abs": rounded_up(max(LEAST, 4 * noise))}}, indent=1))
    print(f"{folder.name}: seed {seed}, noise {noise:.0e}, logit std {notes[-1]['logit_std']:.2f}, {notes[-1]['distinct_greedy']} "
          "distinct greedy ids")


if __name__ == "__main__":
    main()
