"""From a source folder or GGUF to a running engine, the way the commands do it."""
from pathlib import Path

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
