"""Tests of deploy/: systemd accepts the unit, command lines parse, and dashboards use metrics that exist."""

import ast
import asyncio
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from history import Wire, federation
from prometheus_client.parser import text_string_to_metric_families

from command_lines import parsed
from topdp.agents.node import prometheus_metrics
from topdp.errors import ExitCode

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "topdp-agent.service").read_text(encoding="utf-8")
CONTAINER = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
FUNCTIONS = {
    "and",
    "or",
    "on",
    "by",
    "max",
    "sum",
    "rate",
    "increase",
    "label_values",
    "agent",
    "peer",
    "part",
}
FUNCTIONS |= {"job", "topdp", "up", "reason"}


def whole_lines(text):
    """Instructions without comments; continued lines are joined."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M)
    return [line for line in re.sub(r"\\\n\s*", " ", text).splitlines() if line.strip()]


def setting(name):
    return [line.partition("=")[2] for line in whole_lines(UNIT) if line.startswith(f"{name}=")]


# systemd


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit_and_rates_its_exposure_as_low(tmp_path):
    program = tmp_path / "topdp"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "topdp-agent.service"
    unit.write_text(UNIT.replace("/opt/topdp/bin/topdp agent start", f"{program} agent start"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.strip() == "", done.stderr
    told = ["systemd-analyze", "security", "--offline=true", "--threshold=20", unit]
    done = subprocess.run(told, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-300:]


def test_the_unit_has_valid_options_and_restarts_only_after_exit_codes_that_may_pass():
    words = shlex.split(setting("ExecStart")[0])
    assert words[0].endswith("/topdp")
    found = parsed(words[1:])
    assert found["metrics"] == "9464" and found["json_log"]
    never = {int(code) for code in setting("RestartPreventExitStatus")[0].split()}
    assert never == {ExitCode.INPUT, ExitCode.BUDGET, ExitCode.TRUST, ExitCode.DATA, ExitCode.INTERRUPTED}
    assert setting("Restart") == ["on-failure"]  # what remains: faults, kills, a port in use


# Containers


def entrypoint():
    line = next(line for line in whole_lines(CONTAINER) if line.startswith("ENTRYPOINT"))
    return ast.literal_eval(line.removeprefix("ENTRYPOINT ").strip())


def test_the_container_copies_existing_files_and_all_that_the_build_needs(tmp_path):
    steps = [line.split(maxsplit=1) for line in whole_lines(CONTAINER)]
    assert steps[0][0] == "FROM" and {name for name, _ in steps} <= {
        "FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "STOPSIGNAL", "ENTRYPOINT"
    }  # fmt: skip
    copied = [source for name, rest in steps if name == "COPY" for source in rest.split()[:-1]]
    assert copied and all((ROOT / source).exists() for source in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {
        project["project"]["readme"],
        *project["project"]["license-files"],
        "pyproject.toml",
        "constraints.txt",
    }
    assert needed <= set(copied) and "src" in copied
    installs = next(rest for name, rest in steps if name == "RUN" and "pip install" in rest)
    extras = re.search(r"\.\[([\w,]+)\]", installs)[1].split(",")
    assert set(extras) <= set(project["project"]["optional-dependencies"])
    order = [name for name, _ in steps]
    assert order.index("USER") < order.index("ENTRYPOINT") and ("USER", "root") not in map(tuple, steps)


def test_the_compose_file_starts_three_sites_that_share_only_the_manifest():
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert sorted(found["services"]) == ["ada", "bob", "cleo"]
    places = {}
    for name, service in found["services"].items():
        start = parsed([*entrypoint()[1:], *service["command"]])
        mounts = dict(reversed(each.split(":")[:2]) for each in service["volumes"])
        for key in ("manifest", "identity", "data", "state"):
            assert str(start[key]) in mounts, (name, key)
        places[name] = {source for target, source in mounts.items() if target != "/manifest.toml"}
        assert {mounts["/state"], mounts["/site"]} <= set(found["volumes"])
        assert service["restart"] == "on-failure" and entrypoint()[0].endswith("/start-agent")
        assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).exists()
    assert not (
        places["ada"] & places["bob"] | places["bob"] & places["cleo"] | places["ada"] & places["cleo"]
    )


@pytest.mark.parametrize("code", [*ExitCode, 137])
def test_a_container_is_not_started_again_after_codes_that_would_come_again(tmp_path, code):
    program = tmp_path / "topdp"
    program.write_text(f'#!/bin/sh\necho "$@"\nexit {int(code)}\n')
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    started = [DEPLOY / "start-agent", "agent", "start", "--state", "a b"]
    done = subprocess.run(started, env=environment, capture_output=True, text=True)
    again = code in (ExitCode.UNEXPECTED, ExitCode.UNAVAILABLE, 137)
    assert done.stdout == "agent start --state a b\n" and done.returncode == (int(code) if again else 0)
    assert done.stderr == ("" if again or not code else done.stderr) and bool(done.stderr) != (
        again or not code
    )


def test_a_container_passes_sigterm_on_and_waits_for_the_agent(tmp_path):
    program = tmp_path / "topdp"
    program.write_text(
        "#!/bin/sh\ntrap 'echo ended; exit 6' TERM\necho ready\nwhile :; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with subprocess.Popen(
        [DEPLOY / "start-agent"], env=environment, stdout=subprocess.PIPE, text=True
    ) as made:
        assert made.stdout.readline() == "ready\n"
        made.terminate()
        assert made.communicate(timeout=30)[0] == "ended\n" and made.returncode == 6


# Prometheus and Grafana


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The names of all metrics that an agent serves after it has refused a peer."""
    import urllib.request

    made = federation(tmp_path_factory.mktemp("served"), agents=3, rounds=2)

    async def scene():
        agent = made.agent(0, Wire().transport("ada"))
        agent.peers.refusals.report("bob", "stranger", "words")
        try:
            async with prometheus_metrics.serve_metrics(agent, "0") as port:
                place = f"http://127.0.0.1:{port}/metrics"
                return await asyncio.to_thread(
                    lambda: urllib.request.urlopen(place, timeout=5).read().decode()
                )
        finally:
            agent.ledger.close()

    families = text_string_to_metric_families(asyncio.run(scene()))
    return {sample.name for family in families for sample in family.samples}


def names_in(expression):
    bare = re.sub(r'"[^"]*"|\[\w+\]|\b[\d.e]+\b', " ", expression)
    return set(re.findall(r"[a-zA-Z_]\w*", bare)) - FUNCTIONS


def test_alerts_use_metrics_that_are_served(served):
    rules = [
        rule
        for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]
    assert len(rules) >= 8 and len({rule["alert"] for rule in rules}) == len(rules)
    used = set().union(*(names_in(rule["expr"]) for rule in rules))
    assert used and used <= served, used - served
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"].endswith(".") or "{{" in rule["annotations"]["summary"]
        assert rule["annotations"]["action"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_accepts_the_alerts():
    done = subprocess.run(
        ["promtool", "check", "rules", DEPLOY / "alerts.yaml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dashboard_uses_the_metrics_that_are_served(served):
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions += [each["query"] for each in board["templating"]["list"] if each["type"] == "query"]
    used = set().union(*map(names_in, expressions))
    assert used <= served, used - served
    ours = {name for name in served if name.startswith("topdp_") and not name.endswith("_created")}
    assert ours <= used, f"not shown: {ours - used}"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in board["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24  # no two panels overlap
