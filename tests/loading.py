"""From a source folder or GGUF to a running engine, the way the commands do it."""
from pathlib import Path

import numpy as np

from moegg.commands.opening import describe
from moegg.converters import convert
from moegg.engine import Engine
from moegg.formats.container import Container


def convert_to(source, folder, quant):
    """The container of `source` at `quant`, written to `folder`."""
    return convert(source, Path(folder) / f"{Path(source).name}-{quant}.moegg", quant).path


def open_engine(path, **options):
    """An Engine on a .moegg file; options as Engine's."""
    container = Container.open(path)
    return Engine(container, describe(container), **options)


def decode(engine, ids, n):
    """Logits of a prompt's end and of n greedy tokens, [n + 1, V]."""
    s = engine.session()
    s.sync(ids)
    out = [s.logits]
    for _ in range(n):
        out.append(s.eval(int(out[-1].argmax())))
    return np.array(out)


def check_splits(engine, ids, whole):
    """A prompt of 60 tokens, cut in several ways, has the logits [60, V] that it has as one."""
    for split in ([1] * 60, [59, 1], [16, 16, 28], [7, 50, 1, 2]):
        s, at = engine.session(), 0
        for n in split:
            logits = engine.step([(s, ids[at:at + n])])[0]
            at += n
            np.testing.assert_array_equal(logits, whole[at - 1])
