"""Limits on the size and the naming of the source. A commit that raises a limit states why."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "code_metrics.py"

LIMITS = {
    "packages": 15,
    "code lines": 42_900,
    "repeated module names": 0,
    "repeated class names": 0,
    "repeated constant names": 0,
    "vague local names": 80,
    "long positional constructors": 0,
    "arguments of the longest constructor": 19,
}
AGENT_LIMITS = {"agent modules": 190, "agent modules excluded": 0}


def measured(agents):
    specification = importlib.util.spec_from_file_location("code_metrics", SCRIPT)
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    details = script.measure(agents)
    counts = {name: len(value) for name, value in details.items() if isinstance(value, list | dict)}
    counts |= {
        "code lines": details["code lines"]["all"],
        "vague local names": sum(details["vague local names"].values()),
        "arguments of the longest constructor": details["longest constructors"][0][1],
    }
    return counts, details


def test_the_source_stays_within_its_limits():
    counts, details = measured(agents=False)
    over = {name: (counts[name], details.get(name)) for name, limit in LIMITS.items() if counts[name] > limit}
    assert not over


@pytest.mark.slow
def test_an_agent_loads_no_more_than_its_limits_and_than_the_threat_model_states():
    counts, details = measured(agents=True)
    over = {n: (counts[n], details[n]) for n, limit in AGENT_LIMITS.items() if counts[n] > limit}
    assert not over
    page = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
    modules, lines = re.search(r"at most ([\d,]+) modules and ([\d,]+) lines", page).groups()
    assert int(modules) == AGENT_LIMITS["agent modules"]
    assert 0 <= int(lines.replace(",", "")) - details["agent lines"] < 1000


def test_the_index_of_modules_is_current():
    command = ROOT / "scripts" / "generate-index"
    done = subprocess.run([sys.executable, str(command), "--check"])
    assert done.returncode == 0, (
        "docs/design.md lists other modules than there are. Run scripts/generate-index."
    )
