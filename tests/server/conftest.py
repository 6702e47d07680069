"""A tokenizer for all server tests, and two servers: one that writes what a test says, one with a real tiny model."""
import pytest

from tests.server import scripted


@pytest.fixture(scope="session")
def tokenizer():
    return scripted.tiny_tokenizer()


@pytest.fixture
def serve(tokenizer):
    """serve(reply, **options of ScriptedEngine and serving) as a context manager."""
    def start(reply="hello", *, ctx=256, ubatch=32, step_s=0.0, **options):
        return scripted.serving(scripted.ScriptedEngine(tokenizer, reply, ctx=ctx, ubatch=ubatch, step_s=step_s), tokenizer,
                                **options)
    return start


@pytest.fixture(scope="session")
def tiny_engine(qwen3_moe_file):
    from tests.loading import open_engine  # here, so that the rest runs where nothing is compiled
    return open_engine(qwen3_moe_file, ctx=256, n_threads=1, ubatch=32)
