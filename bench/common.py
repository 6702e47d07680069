"""What the scripts here share: who measured what on which machine, runs of `moegg bench`, records as JSON lines.

A record is one JSON object on one line of standard output: header, what was measured, one repetition.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def parser(doc: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def numbers(text: str) -> list[int]:
    """'0,1024' -> [0, 1024]."""
    return [int(x) for x in text.split(",")]


def header() -> dict:
    """The tree and the time of a measurement. commit is None outside of git."""
    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None
    changes = git("status", "--porcelain")
    return {"commit": git("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def storage(path: str | Path) -> str | None:
    """'ext4 on /dev/vda': what the file lies on. Linux."""
    try:
        mounts = [line.split()[:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return None
    place = Path(path).resolve()
    held = [(len(at), f"{kind} on {device}") for device, at, kind in mounts if place.is_relative_to(at)]
    return max(held)[1] if held else None


def last_json(command: list[str]) -> dict:
    """Runs a command that prints a JSON object on its last line; its errors go to our stderr. Ends the script if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    if done.returncode:
        sys.exit(f"{command[0]}: ended with {done.returncode}")
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        sys.exit(f"{command[0]}: printed no JSON object on its last line")


def bench(model: str, *options: str, python: str = sys.executable) -> dict:
    """`moegg bench` in a fresh process, so that its memory is its own."""
    return last_json([python, "-m", "moegg", "bench", model, "--json", *options])


def emit(name: str, result: dict) -> None:
    """One record per repetition of a `moegg bench` result."""
    facts = {k: v for k, v in result.items() if k not in ("runs", "spread", "prefill_tps", "decode_tps", "ttft_s")}
    for i, run in enumerate(result["runs"]):
        print(json.dumps({"bench": name, **header(), "storage": storage(result["file"]), "page_cache": "warm: all pages were touched",
                          **facts, "repetition": i, **{k: v for k, v in run.items() if v is not None}}), flush=True)
