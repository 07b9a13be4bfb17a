"""Tests of the privacy statement: numbers of privacy.json, fields of registries, and no false promises."""

import html
import inspect
import json

import numpy as np
import pytest
import torch
import yaml

import registry_schema
from topdp import Shards, train
from topdp.base.number_text import rounded_up
from topdp.errors import InputError
from topdp.runs.config import REDRAWABLE_NOISE
from topdp.runs.run_folder import RunFolder
from topdp.topology import ring
from topdp.views.pages.run_facts import run_facts
from topdp.views.statement import agent_statement, run_statement, statement_text
from topdp.views.statement.run_statement import statement, statement_html, statement_yaml


def statement_of(path):
    return statement(run_facts(RunFolder(path), max_seconds=0))


def test_numbers_are_those_of_the_run_folder(made):
    said, privacy = statement_of(made / "top"), json.loads((made / "top" / "privacy.json").read_text())
    read = yaml.safe_load(statement_yaml(said))
    parameters = read["details"]["privacy_loss"]["privacy_parameters"]
    assert parameters == {
        "epsilon": privacy["epsilon"]["adaptive"],
        "delta": 1e-5,
        "mu": privacy["mu"]["adaptive"],
    }
    for name, one in read["guarantee"]["answers"].items():
        assert (one["epsilon"], one["mu"]) == (privacy["epsilon"][name], privacy["mu"][name])
    assert read["details"]["accounting"]["assumptions"] == privacy["assumptions"]


@pytest.mark.parametrize("name", ["top", "plain", "central", "sampled", "no-noise"])
def test_the_registry_accepts_the_record_of_a_run(made, name):
    record = yaml.safe_load(statement_yaml(statement_of(made / name)))["registry"]
    assert registry_schema.faults(record) == []
    parameters = record["deployment"]["privacy_loss"]["privacy_parameters"]
    assert ("epsilon" in parameters) == (name != "no-noise")  # infinity is no number of the registry


def test_the_check_of_registry_records_finds_faults(made):
    """Otherwise the test above could not fail."""
    record = statement_of(made / "top")["registry"]
    record["surprise"] = record["deployment"]["basic"]["flavor"] = "x"
    del record["status"]
    record["deployment"]["basic"]["publication_date"] = "1/1/2026"
    record["deployment"]["privacy_loss"]["privacy_parameters"]["epsilon"] = None
    record["deployment"]["deployment_model"]["model_name"] = "Decentralised"
    assert len(registry_schema.faults(record)) == 6


@pytest.mark.parametrize("name", ["top", "plain", "central", "sampled", "no-noise"])
def test_every_kind_of_run_has_a_page(made, name):
    said = statement_of(made / name)
    page = statement_html(said)
    assert page.count("<h1>") == 1
    assert "What this does not protect" in page
    assert said["simulated"]
    for sentence in said["not_protected"]:
        assert sentence in html.unescape(page)


def test_a_run_without_noise_is_said_to_protect_nobody(made):
    said = statement_of(made / "no-noise")
    assert "protects nobody" in said["summary"][0]
    assert not any(one["is_a_guarantee"] for one in said["guarantee"]["answers"].values())


@pytest.mark.parametrize("answer", ["claimed", "view"])
def test_an_answer_that_is_no_guarantee_is_not_stated_as_one(made, answer):
    facts = run_facts(RunFolder(made / "top"), max_seconds=0)
    facts["guarantee"] = {**facts["guarantee"], "answer": answer, "name": answer}
    said, worst = statement(facts), facts["privacy"]["epsilon"]["worst_case"]
    assert "all other agents together" in said["summary"][0]
    assert rounded_up(worst) in said["summary"][0]
    assert "do not rely on it" in said["summary"][1]
    parts = said["details"]
    assert parts["privacy_loss"]["privacy_parameters"]["epsilon"] == worst
    assert parts["privacy_relation"]["bound_on_output_distance"]["epsilon"] == worst
    assert said["guarantee"]["answers"]["worst_case"]["is_a_guarantee"]
    assert not said["guarantee"]["answers"]["claimed"]["is_a_guarantee"]


def test_the_statement_does_not_contain_the_seed(made):
    facts = run_facts(RunFolder(made / "top"), max_seconds=0)
    facts["seed"] = facts["settings"]["seed"] = 987654321
    said = statement(facts)
    assert "987654321" not in statement_yaml(said) + statement_html(said)


def test_only_a_run_with_a_noise_seed_is_said_to_have_noise_that_can_be_drawn_again(copied):
    folder = copied("top")
    before = statement_of(folder)
    assert "noise seed" not in statement_yaml(before) and REDRAWABLE_NOISE not in statement_html(before)
    assert "ChaCha20 with one key of 256 bits" in before["details"]["implementation"]["noise_source"]
    file = folder / "config.toml"
    file.write_text("noise_seed = 4\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    said, facts = statement_of(folder), run_facts(RunFolder(folder), max_seconds=0)
    assert said["summary"][0] == said["details"]["implementation"]["noise_source"] == REDRAWABLE_NOISE
    assert said["evaluation"]["random_numbers"].startswith("Public: they follow from a noise seed")
    assert facts["redrawable_noise"] == REDRAWABLE_NOISE and REDRAWABLE_NOISE in facts["notes"]
    assert facts["noise_seed"] == 4


def as_demonstration(folder, **test):
    """Change run.json as `topdp federation demo` writes it."""
    file = folder / "run.json"
    info = json.loads(file.read_text(encoding="utf-8"))
    agents = len(info["records"])
    results = [{"agent": f"clinic{i}", "seeded": False, "rehearsal": False} | test for i in range(agents)]
    file.write_text(json.dumps({**info, "federation": "72b57fc4", "agents": results}), encoding="utf-8")


def test_simulations_and_demonstrations_are_told_apart(copied):
    folder = copied("top")
    simulated = statement_yaml(statement_of(folder))
    as_demonstration(folder)
    facts = run_facts(RunFolder(folder), max_seconds=0)
    said = statement(facts)
    shown = " ".join(statement_yaml(said).split())
    assert "simulated run" in simulated and "one key determined all noise" in simulated
    for words in ("simulated run", "one key determined", "ChaCha20 with one key", "seeded generator"):
        assert words not in shown, words
    assert "local demonstration: the agents clinic0 to clinic" in shown and not said["simulated"]
    assert said["details"]["implementation"]["noise_source"].startswith("A cipher keyed by the operating")
    assert said["details"]["implementation"]["floating_point"].startswith("Sums and noise are in float64")
    assert facts["graph"]["names"][0] == "clinic0" and "local demonstration" in facts["notes"][0]
    assert registry_schema.faults(said["registry"]) == []


@pytest.mark.parametrize(
    ("test", "words"), [("seeded", "a seed that others know"), ("rehearsal", "without noise")]
)
def test_a_demonstration_without_secret_noise_promises_nothing(copied, test, words):
    folder = copied("top")
    as_demonstration(folder, **{test: True})
    said = statement_of(folder)
    assert said["summary"][0].startswith("This run protects nobody") and words in said["summary"][0]
    assert not any("hard to tell" in sentence for sentence in said["summary"])
    for answer in said["guarantee"]["answers"].values():
        assert answer["status"] == "not private" and answer["epsilon"] is None
        assert not answer["is_a_guarantee"]


def test_a_demonstration_with_damaged_results_is_refused(copied):
    folder = copied("top")
    as_demonstration(folder)
    file = folder / "run.json"
    info = json.loads(file.read_text(encoding="utf-8"))
    for agents in (None, [], [1], info["agents"][1:]):
        file.write_text(json.dumps({**info, "agents": agents}), encoding="utf-8")
        with pytest.raises(InputError, match=r"agents|run\.json"):
            statement_of(folder)


def test_a_run_that_has_only_started_has_no_statement(copied):
    folder = copied("top", state="starting")
    with pytest.raises(InputError, match="about to start"):
        statement_of(folder)


def test_a_name_with_markup_is_text(made):
    facts = run_facts(RunFolder(made / "top"), max_seconds=0)
    facts["name"] = "<script>alert(1)</script>"
    assert "<script>" not in statement_html(statement(facts))


def test_the_command_writes_yaml_and_a_page(topdp, copied):
    folder = copied("top")
    done = topdp("statement", folder, "--json")
    output = json.loads(done.out)
    assert [file.rpartition("/")[2] for file in output["files"]] == [
        "privacy-statement.yaml",
        "privacy-statement.html",
    ]
    assert yaml.safe_load((folder / "privacy-statement.yaml").read_text()) == output["statement"]
    assert topdp("statement", folder).code == 0


def test_every_condition_of_the_template_is_set_by_some_statement():
    """A sentence with a misspelt condition would never appear."""

    def conditions(part):
        parts = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
        own = {part["when"]} if isinstance(part, dict) and "when" in part else set()
        return own.union(*map(conditions, parts))

    sources = "".join(
        inspect.getsource(module) for module in (run_statement, agent_statement, statement_text)
    )
    names = conditions(statement_text._template())
    assert len(names) > 10
    assert [name for name in names if f'"{name}":' not in sources] == []


@pytest.mark.parametrize("sites", [1, 2])
def test_a_run_that_protects_persons_says_so_and_names_the_sites(made, tmp_path, sites):
    x, y = np.random.default_rng(0).normal(size=(24, 3)), np.arange(24) % 2
    persons = [np.arange(24) // 4 + 3 * agent * (2 - (sites > 1)) for agent in range(3)]
    shards = Shards.from_arrays([(x, y)] * 3, persons=persons)
    assert shards.sites_per_person == sites and shards.unit_counts == (6, 6, 6)
    model = torch.nn.Linear(3, 2)
    settings = {"unit": "person", "sites_per_person": sites, "rounds": 2, "clip": 1.0, "method": "dsgd"}
    train(model, shards, ring(3), out=tmp_path / "run", **settings)
    said = statement_of(tmp_path / "run")
    holders = "one agent" if sites == 1 else "up to 2 agents"
    assert said["scope"] == f"One person of {holders}, the largest over agents"
    assert "whether the records of any one person were used" in said["summary"][0]
    details = said["details"]
    assert details["privacy_loss"]["privacy_unit"] == "person-level"
    assert f"18 persons of data given in Python, each held by {holders} (6 to 6 per agent)" in str(details)
    assert "how many persons each agent holds" in details["privacy_relation"]["unprotected_quantities"]
    assert not any(
        "record" in sentence and "ε is that of one record" in sentence for sentence in said["not_protected"]
    )
    assert any("several identifiers" in sentence for sentence in said["not_protected"])
    assert registry_schema.faults(said["registry"]) == []
    facts = run_facts(RunFolder(tmp_path / "run"), max_seconds=5)
    assert (facts["spending"] is None) == (sites == 2)
    assert facts["guarantee"]["unit"] == "person" and facts["data"]["records"]["total"] == 18
