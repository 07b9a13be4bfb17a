"""Tests of the commands in docs/agents.md, in order, for three organisations on this machine.

Only addresses are replaced, by ports on loopback. Commands of other sections (the demonstration, relays,
amendments) are parsed but not run: they have their own tests.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders import blobs_file
from command_lines import command, parsed
from topdp.agents.node.agent_status import ProcessStatus

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3] / "docs" / "agents.md"
SITES = {"ada": 1200, "bob": 800, "cleo": 950}
WALKED = ("agent init", "agent start", "agent status", "agent ledger", "agent pause", "agent resume")
WALKED += ("agent stop", "agent model", "agent quarantine list", "federation create")
MUST = {"agent init", "agent start", "agent status", "agent pause", "agent resume", "agent stop"}
MUST |= {"agent model", "agent quarantine list", "federation create", "agent ledger"}


SKETCH = "..."  # a line with an omission: only its command must exist


def lines():
    """(site or none, words, file that takes the output or none) of every command, in order."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        found = re.match(r"^(?:(\w+)\$\s+)?(?:sudo -u \w+ )?topdp (.*)$", line.strip())
        if found:
            words = shlex.split(found[2], comments=True)
            into = words[words.index(">") + 1] if ">" in words else None
            yield found[1], words[: words.index(">")] if into else words, into


def kind(words):
    return next((each for each in WALKED if " ".join(words).startswith(each)), None)


def test_every_command_of_the_page_parses():
    for _, words, _ in lines():
        command(words) if SKETCH in words else parsed(words)
    assert {kind(words) for _, words, _ in lines()} >= MUST


@pytest.fixture
def sites(tmp_path):
    """A folder with records for each organisation, and the processes of their agents."""
    for name, records in SITES.items():
        (tmp_path / name).mkdir()
        blobs_file(tmp_path / name / "records.npz", records)
    running = {}
    yield tmp_path, running
    for process in running.values():
        process.kill()
        process.wait()


def addresses(words):
    probes = [socket.socket() for _ in range(2)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return dict(zip(words, [f"127.0.0.1:{port}" for port in ports], strict=True))


def started(folder, words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "topdp", *words]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


def until(condition, seconds=90.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.1)


def test_the_commands_of_the_page_work_in_order(sites, topdp, monkeypatch):
    """Ada starts with the others, is inspected, paused and stopped; then all three start, and finish."""
    root, running = sites
    here = addresses(["ada.example.org:7400", "bob.example.org:7400"])
    start = done = None
    for site, words, into in lines():
        what = kind(words)
        if what is None or SKETCH in words:
            continue
        words = [here.get(word, word) for word in words if word != "--watch"]
        folder = root if what == "federation create" else root / (site or "ada")
        monkeypatch.chdir(folder)
        if what == "agent start":
            if start is None:
                start = words
                running |= {name: started(root / name, words) for name in SITES}
                until(lambda: (s := ProcessStatus.read(root / "ada" / "state")) is not None and s.round >= 0)
            continue
        done = topdp(*words)
        assert done.code == 0, (words, done.err)
        if into:
            (root / into).write_text(done.out)
        if what == "federation create":
            for name in SITES:
                shutil.copy(root / "manifest.toml", root / name)
        if what == "agent stop":
            assert running.pop("ada").wait(30) == 0
    for name in ("bob", "cleo"):
        assert topdp("agent", "stop", "--state", root / name / "state").code == 0
        assert running.pop(name).wait(30) == 0
    assert ProcessStatus.read(root / "ada" / "state").state == "ended"
    assert any((root / "ada").glob("*.pt")) or any((root / "ada").glob("*.safetensors"))
    watched = ["--evaluate", "10", "--report", "0.2", "--json-log"]
    running |= {name: started(root / name, [*start, *watched * (name == "bob")]) for name in SITES}
    codes = {name: process.wait(120) for name, process in running.items()}
    assert codes == dict.fromkeys(SITES, 0), (root / "ada" / "log").read_text()[-2000:]
    for name in SITES:
        done = topdp("agent", "ledger", "verify", "--state", root / name / "state", "--json")
        assert done.code == 0 and json.loads(done.out)["whole"]
        assert json.loads((root / name / "state" / "result.json").read_text())["finished"]
    log_lines = [
        json.loads(line) for line in (root / "bob" / "log").read_text().splitlines() if line[0] == "{"
    ]
    assert all({"agent", "event", "round"} <= set(line) for line in log_lines)
    assert all(line["agent"] == "bob" for line in log_lines)
    progress = [line for line in log_lines if line["event"] == "progress"]
    assert progress[-1]["rounds"] == 100 and 0 < progress[-1]["epsilon"] <= progress[-1]["budget"]
    assert progress[-1]["scores"]["metrics"]["accuracy"] > 0.3 and "accuracy" in progress[-1]["message"]
