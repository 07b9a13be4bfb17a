"""Tests of damaged, changed and foreign run folders: an error message or a correct page, no traceback."""

import json
import os
import random
import shutil

import pytest

from topdp.errors import TopdpError
from topdp.runs.planning import seal_of
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.views.pages.report_page import report_html
from topdp.views.pages.run_facts import run_facts
from topdp.views.statement.run_statement import statement, statement_html, statement_yaml

HUGE = 10**400


def all_pages(path):
    """Makes every page of a run; any error without a message fails the test."""
    facts = run_facts(RunFolder.open(path), max_seconds=0.0)
    said = statement(facts)
    for text in (report_html([facts]), statement_html(said), statement_yaml(said)):
        text.encode()


def change_last_line(path, **changes):
    """Changes the last evaluation."""
    file = path / "metrics.jsonl"
    *before, last = file.read_text().splitlines()
    file.write_text("\n".join([*before, json.dumps({**json.loads(last), **changes})]) + "\n")


@pytest.mark.slow
@pytest.mark.parametrize("value", [float("nan"), float("inf"), HUGE, "x", {}, [float("nan")], True])
def test_a_metric_that_is_no_number_is_refused_with_its_line(copied, value):
    path = copied("plain")
    change_last_line(path, accuracy={"mean": value, "min": value, "max": value})
    with pytest.raises(RunFolderError, match=r"line 5 of .*metrics\.jsonl, got invalid values of accuracy"):
        all_pages(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"round": -3},
        {"round": True},
        {"accuracy": {"mean": 0.5, "min": [], "max": 1}},
        {"accuracy_per_agent": "x"},
    ],
)
def test_invalid_lines_of_metrics_are_refused(copied, changes):
    path = copied("plain")
    change_last_line(path, **changes)
    with pytest.raises(RunFolderError, match="got invalid values of"):
        all_pages(path)


def test_an_undefined_metric_is_accepted(copied):
    path = copied("plain")
    change_last_line(path, accuracy={"mean": None, "min": None, "max": None})
    all_pages(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seconds", float("inf")), ("torch", ["2"]), ("stopped", {"round": "x"}), ("device", "\ud800")],
)
def test_invalid_values_in_run_json_are_refused(copied, name, value):
    with pytest.raises(RunFolderError, match="Expected"):
        all_pages(copied("plain", **{name: value}))


def test_a_largest_epsilon_below_that_of_an_agent_is_refused(copied):
    """This holds even if the seal matches the changed file."""
    path = copied("plain")
    file = path / "privacy.json"
    said = json.loads(file.read_text())
    said.pop("seal")
    said["epsilon"]["worst_case"] /= 2
    file.write_text(json.dumps({**said, "seal": seal_of(said)}))
    with pytest.raises(RunFolderError, match=r"privacy\.json, got invalid values of epsilon"):
        all_pages(path)


DEEP = b"[" * 100_000
FOREIGN = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b"NaN",
    b"\xff\xfe\x00",
    b"\n\n",
    DEEP,
    b'{"a":' * 100_000,
    b"a=" + DEEP,
]


def damages(raw, seed):
    """Foreign content, truncated content, and content with flipped bits."""
    chance = random.Random(seed)
    yield from FOREIGN
    for _ in range(6):
        yield raw[: chance.randrange(len(raw))]
    for _ in range(12):
        changed = bytearray(raw)
        changed[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        yield bytes(changed)


@pytest.mark.parametrize("name", ["run.json", "config.toml", "metrics.jsonl", "privacy.json", "plan.npz"])
def test_every_damage_is_reported_in_words(made, tmp_path, name):
    path = tmp_path / "run"
    shutil.copytree(made / "plain", path)
    raw = (path / name).read_bytes()
    refused = 0
    for content in damages(raw, name):
        (path / name).write_bytes(content)
        try:
            all_pages(path)
        except TopdpError as error:
            refused += 1
            assert str(error).startswith("Expected") or path.name in str(error)
    assert refused >= len(FOREIGN) - 3  # metrics without a line are those of a run without evaluations
    (path / name).unlink()
    if name != "metrics.jsonl":
        with pytest.raises(TopdpError):
            all_pages(path)


def test_a_graph_with_many_more_agents_is_refused_before_it_is_built(copied):
    path = copied("plain")
    text = (path / "config.toml").read_text().replace('kind = "file"', 'kind = "complete"')
    changed = [
        line for line in text.replace("agents = 6", f"agents = {10**12}").splitlines() if "path =" not in line
    ]
    (path / "config.toml").write_text("\n".join(changed))
    with pytest.raises(RunFolderError, match=r"Expected 6 agents in config\.toml"):
        all_pages(path)


def test_a_folder_name_that_is_no_valid_text_is_shown_with_replacements(copied, tmp_path):
    path = copied("plain").rename(tmp_path / os.fsdecode(b"m\xfcll"))
    assert run_facts(RunFolder.open(path), max_seconds=0.0)["name"] == "m\ufffdll"
    all_pages(path)
