"""Counters of the server and their Prometheus text (exposition format 0.0.4). Thread-safe; holds numbers, never text of users."""
from __future__ import annotations

import threading
from collections.abc import Mapping

_HELP = {
    "http_requests_total": ("counter", "HTTP responses by route and status"),
    "answers_total": ("counter", "Answers by how they ended"),
    "prompt_tokens_total": ("counter", "Prompt tokens evaluated"),
    "prompt_tokens_cached_total": ("counter", "Prompt tokens reused from an earlier request"),
    "answer_tokens_total": ("counter", "Tokens generated"),
    "prompt_seconds_total": ("counter", "Time spent on passes with prompt tokens"),
    "answer_seconds_total": ("counter", "Time spent on passes without prompt tokens"),
    "passes_total": ("counter", "Forward passes"),
    "pass_tokens_total": ("counter", "Tokens in forward passes"),
    "queue_full_total": ("counter", "Requests refused because the queue was full"),
    "requests_running": ("gauge", "Answers being generated"),
    "requests_waiting": ("gauge", "Answers in the queue"),
    "timelines": ("gauge", "Timelines that hold state"),
    "timeline_tokens": ("gauge", "Tokens in all timelines"),
    "shelf_bytes": ("gauge", "Memory of kept states of other conversations"),
}


class Metrics:
    """add() for counters, set() for gauges; `text` renders all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {(n, ()): 0.0 for n in _HELP if n not in (
            "http_requests_total", "answers_total")}

    def add(self, name: str, by: float = 1, **labels: str) -> None:
        key = (name, tuple(sorted(labels.items())))
        with self._lock:
            self._values[key] = self._values.get(key, 0.0) + by

    def set(self, name: str, value: float) -> None:
        with self._lock:
            self._values[(name, ())] = value

    def value(self, name: str, **labels: str) -> float:
        """One number; 0 for what was never counted. Without labels: the sum over all."""
        with self._lock:
            return sum(v for (n, have), v in self._values.items() if n == name and set(labels.items()) <= set(have))

    def text(self, extra: Mapping[str, float] | None = None) -> str:
        """The Prometheus page. extra: counters of the engine, by name."""
        with self._lock:
            values = sorted(self._values.items())
        lines: list[str] = []
        last = ""
        for (name, labels), value in values:
            if name != last:
                kind, text = _HELP[name]
                lines += [f"# HELP moegg_{name} {text}", f"# TYPE moegg_{name} {kind}"]
                last = name
            inside = ",".join(f'{k}="{v}"' for k, v in labels)
            lines.append(f"moegg_{name}{'{' + inside + '}' if inside else ''} {value:.10g}")
        for name, value in (extra or {}).items():
            lines += [f"# TYPE moegg_engine_{name} untyped", f"moegg_engine_{name} {value:.10g}"]
        return "\n".join(lines) + "\n"
