"""A hub on localhost, a store in a temporary folder, and no way to the network."""
import huggingface_hub.constants as constants
import pytest

from moegg.hub import remote

from .fake_hub import FakeHub


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """The only hub there is; pauses between attempts are short."""
    hub = FakeHub()
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("MOEGG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(remote, "PAUSE_S", 0.001)
    yield hub
    hub.close()
