"""Fixtures that several folders share, and the environment every test can rely on."""
import logging
import os

import pytest

from tests import oracle

# No test sees the models of whoever runs it.
os.environ["MOEGG_HOME"] = "/nonexistent/moegg"
# numpy's BLAS threads would compete with the engine's; cli.py does the same for the program.
os.environ.update({name: "1" for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")}, TOKENIZERS_PARALLELISM="false")


@pytest.fixture(scope="session")
def qwen3_moe_folder(tmp_path_factory):
    """A tiny random Hugging Face checkpoint with tokenizer and chat template (512 ids, 500 in the tokenizer)."""
    return oracle.rebuild("qwen3_moe", tmp_path_factory.mktemp("source") / "tiny-moe")


@pytest.fixture(scope="session")
def qwen3_moe_file(qwen3_moe_folder, tmp_path_factory):
    """The same as an f32 .moegg file. Tests that change it work on a copy."""
    from tests.loading import convert_to  # here, so that pure Python is tested where nothing is compiled
    return convert_to(qwen3_moe_folder, tmp_path_factory.mktemp("file"), "f32")


@pytest.fixture(autouse=True)
def logger_as_it_was():
    """Commands that run in this process point moegg's logger at stderr; the next test must not inherit that."""
    logger = logging.getLogger("moegg")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = before[:2]
    logger.setLevel(before[2])


@pytest.fixture
def call(capsys):
    """Runs a command line in this process: (exit code, stdout, stderr)."""
    from moegg.cli import main  # here, so that pure Python is tested where nothing is compiled

    def run(*argv):
        code = main([str(a) for a in argv])
        return code, *capsys.readouterr()
    return run
