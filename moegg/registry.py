"""Finds the module of an architecture, and what it describes: built-ins in moegg/models, and entry points of the group "moegg.models".

An entry point's name is its architecture ("my-arch"), its value a module with the same names as a built-in
(moegg/models/README.md). It is imported only when asked for: by name, or when no built-in knows a class name. Files never cause
code to load. MOEGG_PLUGINS=0 switches entry points off. Two owners of one architecture are an error that names both.
"""
import difflib
import importlib
import os
import pkgutil
import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from moegg import models
from moegg.arch import Chat, ConfigReader, Model
from moegg.errors import FormatError, UnsupportedModel

GROUP = "moegg.models"
_TASK = re.compile(r"For(CausalLM|ConditionalGeneration)$")


@cache
def _builtins() -> dict[str, ModuleType]:
    """Architecture -> module. A module's file name is its architecture with _ for -."""
    found = [importlib.import_module(f"{models.__name__}.{m.name}") for m in pkgutil.iter_modules(models.__path__)
             if not m.name.startswith("_")]
    return {module.NAMES["arch"]: module for module in found}


def _plugins() -> dict[str, EntryPoint]:
    """Architecture -> entry point, none of them imported."""
    found: dict[str, EntryPoint] = {}
    if os.environ.get("MOEGG_PLUGINS") == "0":
        return found
    for entry in entry_points(group=GROUP):
        if entry.name in _builtins() or entry.name in found:
            other = _owner(found[entry.name]) if entry.name in found else "moegg itself"
            raise FormatError(f"architecture {entry.name!r}: provided twice: got {_owner(entry)} and {other}, expected one; "
                              "uninstall one of them or set MOEGG_PLUGINS=0", "arch-duplicate")
        found[entry.name] = entry
    return found


def _owner(entry: EntryPoint) -> str:
    return f"distribution {entry.dist.name!r}" if entry.dist else f"entry point {entry.value!r}"


def _load(entry: EntryPoint) -> ModuleType:
    try:
        module = entry.load()
        sound = (module.NAMES["arch"] == entry.name and callable(module.describe) and callable(module.tiny)
                 and all(isinstance(chat, Chat) for chat in _declared(module)))
    except Exception as e:      # anything may go wrong in foreign code; the message names whose it is
        raise FormatError(f"architecture {entry.name!r}: {_owner(entry)} cannot be loaded: {type(e).__name__}: {e}; "
                          "uninstall it or set MOEGG_PLUGINS=0", "arch-plugin") from e
    if not sound:
        raise FormatError(f"architecture {entry.name!r}: {_owner(entry)}: got the names of {module.NAMES['arch']!r}, expected "
                          f"NAMES['arch'] {entry.name!r}, describe() and tiny(), and a Chat or several if there is CHAT", "arch-plugin")
    return module


def names() -> list[str]:
    """All architectures, built-in and installed, sorted."""
    return sorted([*_builtins(), *_plugins()])


def find(*, arch: str | None = None, hf: str | None = None, model_type: str | None = None, gguf: str | None = None) -> ModuleType:
    """The module for a file's architecture, a Hugging Face class name or model_type, or a GGUF general.architecture.

    With several, the first in this order that is not None decides. Raises UnsupportedModel, which names the nearest.
    """
    kind, wanted = next(((k, v) for k, v in (("arch", arch), ("hf", hf), ("model_type", model_type), ("gguf", gguf))
                         if v is not None), ("arch", ""))
    plugins = _plugins()
    if kind == "arch" and wanted in plugins:
        return _load(plugins[wanted])
    for module in _builtins().values():
        if wanted in spelled(module, kind) and not (kind == "gguf" and hasattr(module, "gguf_own")):
            return module
    loaded = [] if kind == "arch" else [_load(entry) for entry in plugins.values()]
    for module in loaded:
        if wanted in spelled(module, kind):
            return module
    known = {n for m in (*_builtins().values(), *loaded) for n in spelled(m, kind)} | (set(plugins) if kind == "arch" else set())
    bare = {name: _TASK.sub("", name) for name in sorted(known)}      # else ends that all class names share make them alike
    close = difflib.get_close_matches(_TASK.sub("", wanted), bare.values(), 3, cutoff=0.7)
    near = [name for name in sorted(bare, key=lambda name: close.index(bare[name]) if bare[name] in close else 99) if bare[name] in close]
    raise UnsupportedModel(f"model: unknown architecture: got {wanted!r}, expected one of {len(known)} that 'moegg archs' lists"
                           + (f"; did you mean {' or '.join(map(repr, near))}?" if near else ""), "arch-unknown")


def find_gguf(name: str, meta: Mapping[str, Any]) -> ModuleType:
    """The module for a GGUF general.architecture. Where several share the name, those with gguf_own() say which files are theirs, and the one
    without has the others. meta: as gguf_config() gets it. Raises UnsupportedModel.
    """
    for module in _builtins().values():
        if name in module.NAMES.get("gguf_unread", ()):
            raise UnsupportedModel(f"model: GGUF files of architecture {name!r} are not read; {module.NAMES['arch']} is converted from safetensors",
                                   "arch-unsupported")
    owners = (m for m in _builtins().values() if name in spelled(m, "gguf") and hasattr(m, "gguf_own"))
    return next((m for m in owners if m.gguf_own(meta)), None) or find(gguf=name)


def describe(arch: str, config: Mapping[str, Any], path: Path) -> Model:
    """What the stored config of the file at `path` describes. Raises UnsupportedModel for an unknown architecture, FormatError for a key
    that it does not read: a model that means more than this version knows must not be taken for one that does not.
    """
    reader = ConfigReader(config, where=f"{path.name}: config")
    model = find(arch=arch).describe(reader)
    if unread := reader.unused():
        raise FormatError(f"{path}: stored config: got key {unread[0]!r}, expected only keys that {arch} reads; the file was written by a newer "
                          "moegg, or is damaged", "arch-mismatch")
    return model


def chats(arch: str) -> tuple[Chat, ...]:
    """What a module declares of its families' chat models; nothing if there is no module, it cannot be loaded, or has no CHAT."""
    try:
        return _declared(find(arch=arch))
    except (UnsupportedModel, FormatError):     # whoever describes the model says so; its text can be looked at all the same
        return ()


def _declared(module: ModuleType) -> tuple[Chat, ...]:
    declared = getattr(module, "CHAT", ())
    return declared if isinstance(declared, tuple) else (declared,)


def spelled(module: ModuleType, kind: str) -> tuple[str, ...]:
    """The names of one kind in a module's NAMES, which may be a string or several."""
    value = module.NAMES.get(kind, ())
    return (value,) if isinstance(value, str) else value
