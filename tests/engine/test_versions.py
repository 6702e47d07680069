"""Files of every format version that was released open for good and say what they said: formats/FORMAT.md, Versions."""
import hashlib
from pathlib import Path

import pytest

from moegg.formats.container import Container
from tests.loading import open_engine

FOLDER = Path(__file__).parents[1] / "fixtures" / "versions"
ANSWERS = {"v1": ([33, 16, 177, 164, 164, 164, 76, 97, 164, 439, 71, 264], "b8a63010ef099720d2f784aba736d380a8d007bd8d172ddada8da4d42f6b92b0")}


@pytest.mark.parametrize("name", sorted(p.stem for p in FOLDER.glob("*.moegg")))
def test_a_released_version_opens_and_answers_as_it_did(name):
    path, (want, digest) = FOLDER / f"{name}.moegg", ANSWERS[name]
    Container.open(path).verify()
    session = (engine := open_engine(path, ctx=64, n_threads=1)).session()
    logits, tokens = engine.step([(session, list(range(5, 25)))])[0], []
    for _ in want:
        tokens.append(int(logits.argmax()))
        session.eval(tokens[-1])
        logits = session.logits
    assert (tokens, hashlib.sha256(logits.astype("<f4").tobytes()).hexdigest()) == (want, digest)
