"""Tests of the privacy statement: numbers of privacy.json, fields of registries, and no false promises."""

import html
import inspect
import json

import pytest
import yaml

from topdp.errors import InputError
from topdp.runs.run_folder import RunFolder
from topdp.views.pages.run_facts import run_facts
from topdp.views.statement import agent_statement, run_statement, statement_text
from topdp.views.statement.run_statement import statement, statement_html, statement_yaml

REGISTRY = {
    "product": {"name", "data_curators", "intended_use", "data_product_type", "description"},
    "dp_flavor": {"name", "input_metric", "bound_on_input_distance", "output_measure", "data_domain"}
    | {"bound_on_output_distance", "unprotected_quantities"},
    "privacy_loss": {"privacy_unit", "privacy_unit_description", "privacy_parameters"},
    "model": {"model_name", "actors", "release_type", "data_source_type", "access_type"},
    "accounting": {"post_processing", "composition"},
    "implementation": {"pre_processing_eda_hyperparameter_tuning", "mechanisms", "justification"},
}
"""Names of fields as in registry.opendp.org (opendp/deployments-registry-data, deployments/*.yaml)."""


def statement_of(path):
    return statement(run_facts(RunFolder(path), max_seconds=0))


def test_numbers_are_those_of_the_run_folder(made):
    said, privacy = statement_of(made / "top"), json.loads((made / "top" / "privacy.json").read_text())
    read = yaml.safe_load(statement_yaml(said))
    parameters = read["deployment"]["privacy_loss"]["privacy_parameters"]
    assert parameters == {
        "epsilon": privacy["epsilon"]["adaptive"],
        "delta": 1e-5,
        "mu": privacy["mu"]["adaptive"],
    }
    for name, one in read["guarantee"]["answers"].items():
        assert (one["epsilon"], one["mu"]) == (privacy["epsilon"][name], privacy["mu"][name])
    assert read["deployment"]["accounting"]["assumptions"] == privacy["assumptions"]


def test_the_statement_has_the_fields_of_the_registry(made):
    said = statement_of(made / "top")["deployment"]
    for part, fields in REGISTRY.items():
        assert fields <= set(said[part]), part


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
    assert f"{worst:.4g}" in said["summary"][0]
    assert "do not rely on it" in said["summary"][1]
    parts = said["deployment"]
    assert parts["privacy_loss"]["privacy_parameters"]["epsilon"] == worst
    assert parts["dp_flavor"]["bound_on_output_distance"]["epsilon"] == worst
    assert said["guarantee"]["answers"]["worst_case"]["is_a_guarantee"]
    assert not said["guarantee"]["answers"]["claimed"]["is_a_guarantee"]


def test_the_statement_does_not_contain_the_seed(made):
    facts = run_facts(RunFolder(made / "top"), max_seconds=0)
    facts["seed"] = facts["settings"]["seed"] = 987654321
    said = statement(facts)
    assert "987654321" not in statement_yaml(said) + statement_html(said)


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

    sources = "".join(inspect.getsource(module) for module in (run_statement, agent_statement))
    names = conditions(statement_text._template())
    assert len(names) > 10
    assert [name for name in names if f'"{name}":' not in sources] == []
