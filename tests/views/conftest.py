"""Small runs for tests of pages; the names of their agents are meant to break the pages."""

import json
import shutil
from pathlib import Path

import pytest

from builders import blobs_file
from topdp.runs import config
from topdp.runs.run import run

NAMES = ["<script>alert(1)</script>", '"quoted"', "</script><b>bold</b>", "&amp;", "מרפאה", "plain"]


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """runs/top, runs/plain and others: six agents on a ring with hostile names, the same data and seed."""
    place = tmp_path_factory.mktemp("pages")
    data = blobs_file(place / "blobs.npz", 300)
    links = "".join(f"{one} {other}\n" for one, other in zip(NAMES, NAMES[1:] + NAMES[:1], strict=True))
    (place / "links.txt").write_text(links, encoding="utf-8")
    common = [
        f'data.name="{data}"', f'topology.path="{place / "links.txt"}"', "rounds=12", "model.name=linear",
        "train.evaluate_every=3", "privacy.epsilon=2", "topology.agents=6",
    ]  # fmt: skip
    for name, changes in {
        "top": ["method.name=top", 'privacy.answers=["outsider"]'],
        "plain": ["method.name=plain", "privacy.guarantee=worst-case"],
        "no-noise": ["method.name=no-noise"],
        "central": ["method.name=central", "privacy.colluders=0"],
        "correlated": ["method.name=correlated", "method.gossip=2", "privacy.colluders=2"],
        "sampled": ["method.name=plain", "data.batch={ poisson = 20 }"],
    }.items():
        run(config.read(changes=[*common, *changes]), place / "runs" / name, "cpu")
    return place / "runs"


@pytest.fixture
def copied(made, tmp_path):
    """A copy of a run that a test may damage: `copied("top", state="running")`."""

    def copy(name: str, **info: object) -> Path:
        shutil.copytree(made / name, tmp_path / name)
        known = json.loads((tmp_path / name / "run.json").read_text())
        changed = {key: value for key, value in {**known, **info}.items() if value is not ...}
        (tmp_path / name / "run.json").write_text(json.dumps(changed))
        return tmp_path / name

    return copy
