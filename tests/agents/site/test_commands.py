"""The commands as people call them: real processes, gRPC, mutual TLS, kill -9."""

import asyncio
import json
import os
import stat
import subprocess
import sys
import urllib.request

import numpy as np
import pytest
from history import Wire, federation
from typer.testing import CliRunner

from builders import blobs_file
from topdp.agents.site import demo, metrics
from topdp.agents.terms import manifest, setup
from topdp.cli import app
from topdp.runs import run
from topdp.runs.folder import RunFolder
from topdp.settings import config


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return blobs_file(tmp_path_factory.mktemp("data") / "blobs.npz", 240)


def small(data, *changes):
    basis = [f'data.name="{data}"', "topology.agents=3", "topology.kind=ring", "rounds=8", "privacy.clip=1.0"]
    return config.read(changes=[*basis, "privacy.guarantee=worst-case", "privacy.epsilon=20.0", *changes])


def command(*arguments):
    """In this process: what is tested are arguments, words and exit codes."""
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_a_demonstration_killed_and_resumed_ends_as_the_simulator(data, tmp_path):
    """Two of three processes die by SIGKILL, at different places, and are started again."""
    wanted = small(data)
    said = []
    found = demo.run(
        wanted,
        tmp_path / "demo",
        seeded=True,
        say=said.append,
        failpoints={0: "after_ledger:3", 1: "after_receive:4"},
    )
    simulated = run.run(wanted, tmp_path / "simulator", "cpu")
    folder = RunFolder.open(tmp_path / "demo")
    np.testing.assert_allclose(folder.estimates, simulated.estimates.numpy(), rtol=1e-5, atol=1e-6)
    assert sum("was killed at" in line for line in said) == 2
    assert folder.state == "done" and folder.plan.agents == 3
    assert found["seeded"] and [each["code"] for each in found["agents"]] == [0, 0, 0]
    assert set(found["milliseconds_per_round"]) == {"compute", "ledger", "network"}
    assert {"run", "rounds", "accuracy", "privacy", "seconds"} <= set(found)
    for i in range(3):
        state = tmp_path / "demo" / "agents" / f"agent{i}" / "state"
        checked = command("agent", "ledger", "verify", "--state", state, "--json")
        assert checked.exit_code == 0 and json.loads(checked.stdout)["charges"] == 9
        assert stat.S_IMODE(os.stat(state / "ledger.sqlite").st_mode) == 0o600


def test_one_with_a_small_budget_ends_with_code_3_and_the_other_with_0(data, tmp_path):
    wanted = small(data, "topology.kind=complete", "topology.agents=2")
    found = demo.run(wanted, tmp_path / "demo", budgets={1: 10.0})
    assert [each["code"] for each in found["agents"]] == [0, 3]
    assert 0 < found["agents"][1]["stopped_at"] < 9
    assert not found["seeded"] and "warning" not in found["agents"][0]


def test_from_nothing_to_a_manifest(data, tmp_path):
    cards = []
    for port, name in enumerate(("ada", "bob", "cleo"), start=7401):
        here = ("--name", name, "--identity", tmp_path / name, "--address", f"localhost:{port}")
        made = command("agent", "init", *here)
        assert made.exit_code == 0 and "BEGIN CERTIFICATE" in made.stdout and "PRIVATE" not in made.stdout
        cards.append(tmp_path / name / "card.toml")
    again = command("agent", "init", "--name", "ada", "--identity", tmp_path / "ada")
    assert again.exit_code == 4 and "Expected no identity" in again.output

    place = tmp_path / "manifest.toml"
    common = ("federation", "create", *cards, "--links", "ada-bob,bob-cleo", "--json")
    common += ("--set", "rounds=5", "--set", "topology.kind=ring")
    made = command(*common, "--records", "100,80,60", "--out", place)
    assert made.exit_code == 0, made.output
    terms = manifest.read(place)
    assert terms.hash == json.loads(made.stdout)["hash"] and terms.links == ((0, 1), (1, 2))
    assert terms.config.data.sizes == [100, 80, 60] and len(terms.config.privacy.sigma) == 3
    assert setup.Setup.of(terms.config, terms.topology, terms.names, terms.hash).counts == (100, 80, 60)

    agreed = place.read_bytes()
    over = command(*common, "--records", "100", "--out", place)
    assert over.exit_code == 2 and "exists" in over.output and place.read_bytes() == agreed

    other = tmp_path / "other.toml"
    assert command(*common, "--records", "100,80", "--out", other).exit_code == 2
    assert command(*common, "--records", "many", "--out", other).exit_code == 2
    warned = command(*common, "--records", "100", "--dead-neighbour", "go-on", "--out", other)
    assert warned.exit_code == 0 and "charge by worst case" in warned.output

    short = ("--data", data, "--state", tmp_path / "state", "--identity", tmp_path / "ada")
    started = command("agent", "start", "--manifest", place, *short)
    assert started.exit_code == 5 and "as the manifest says" in " ".join(started.output.split())


def test_help_needs_neither_torch_nor_grpc():
    code = "import sys, topdp.cli; sys.exit(any(m in sys.modules for m in ('torch', 'grpc', 'cryptography')))"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["agent", "status", "--state", "nowhere"], 2, "there is none"),
        (["agent", "ledger", "verify", "--state", "nowhere"], 2, "there is none"),
        (["agent", "start", "--manifest", "no", "--data", "no", "--state", "s"], 4, "readable manifest"),
        (["federation", "demo", "--budget", "9=1"], 2, "--budget"),
        (["federation", "demo", "--set", "method.name=no-noise", "--out", "x"], 2, "no finite epsilon"),
    ],
)
def test_what_cannot_be_is_said_with_its_exit_code(tmp_path, arguments, code, words, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    if arguments[:2] == ["federation", "demo"]:
        arguments = [*arguments, "--set", f'data.name="{data}"', "--agents", "3"]
    done = command(*arguments)
    assert done.exit_code == code and words in " ".join(done.output.split()), done.output


def test_numbers_for_prometheus_are_served_on_loopback(tmp_path, quick):
    made = federation(tmp_path, agents=3, rounds=2)

    async def scene():
        agent = made.agent(0, Wire().transport("ada"))
        server = await metrics.serve(agent, 0)
        host, port = server.sockets[0].getsockname()
        read = asyncio.to_thread(
            lambda: urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=5).read().decode()
        )
        text = await read
        server.close()
        agent.ledger.close()
        return host, text

    host, text = asyncio.run(scene())
    assert host == "127.0.0.1" and 'topdp_rounds{agent="ada"} 0' in text and 'peer="bob"' in text
