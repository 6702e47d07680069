"""Small files that appear whole or not at all. Models and downloads have writers of their own (formats/writer.py, hub/pull.py)."""
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write, under a name of this process's own until the block is left; then it is `path`, or nothing if it was left by
    an exception. mode: permissions, less the umask. A link stays one. Raises OSError, also for a device or a pipe, which a rename
    would replace.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is a folder, a device or a pipe, expected the name of a file")
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), mode), "wb") as f:
            yield f
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
