"""`topdp stats`: from files or a configuration to tables and JSON."""

import csv

import numpy as np
import pytest
from test_cli import parse_json

SCHEMA = """
target = "ill"
classes = ["no", "yes"]
[ranges]
age = [0, 100]
dose = [0, 10]
"""


@pytest.fixture
def sites(tmp_path):
    generator = np.random.default_rng(0)
    for name in ("north", "south", "west"):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["age", "dose", "ill"])
            for _ in range(400):
                dose = "" if generator.random() < 0.1 else f"{generator.uniform(0, 10):.3f}"
                table.writerow([f"{generator.normal(50, 10):.2f}", dose, generator.choice(["no", "yes"])])
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def test_statistics_of_three_sites_as_json_and_as_tables(topdp, sites):
    command = ["stats", str(sites / "*.csv"), "--schema", sites / "schema.toml", "--epsilon", 8]
    found = parse_json(topdp(*command, "--json"))
    assert found["records"] == 1200 and found["method"] == "correlated"
    assert 8 * (1 - 1e-6) <= found["privacy"]["epsilon"]["adaptive"] <= 8
    age, noise = (found["columns"]["age"][key] for key in ("estimates", "deviations"))
    assert abs(age["mean"] - 50) < 5 * noise["mean"] + 1 and len(age["counts"]) == 16
    assert abs(found["columns"]["dose"]["estimates"]["missing"] - 120) < 40
    shown = topdp(*command, "--bins", 4, "--out", sites / "run")
    assert shown.code == 0 and "age, dose" in shown.out and "ε = 8 at δ = 1e-05" in shown.out
    assert "against any one other agent" in shown.out and (sites / "run" / "privacy.json").exists()


def test_a_configuration_names_sites_graph_and_budget(topdp, sites):
    names = [str(sites / f"{name}.csv") for name in ("north", "south", "west")]
    (sites / "job.toml").write_text(
        f'[topology]\nkind = "star"\nhubs = 1\nagents = 3\n[privacy]\nepsilon = 2.0\n[data]\n'
        f"sites = {names}\n"
        f'schema = "{sites / "schema.toml"}"\n[method]\nname = "muffliato"\n'
    )
    found = parse_json(topdp("stats", "--config", sites / "job.toml", "--no-correlations", "--json"))
    assert found["method"] == "muffliato" and found["correlations"] == []
    assert found["privacy"]["epsilon"]["worst_case"] == pytest.approx(2, rel=1e-6)


def test_one_table_is_divided_among_agents_as_in_a_run_and_one_file_is_one_party(topdp, sites):
    schema = ["--schema", sites / "schema.toml"]
    alone = parse_json(topdp("stats", sites / "north.csv", *schema, "--json"))
    assert alone["method"] == "central" and "one party that all trust" in alone["observer"]
    table = sites / "north.csv"
    full = table.read_text().replace(",,", ",5,")  # a run refuses missing values without a fill
    table.write_text(full)
    (sites / "job.toml").write_text(f'[topology]\nkind = "ring"\nagents = 4\n[data]\nname = "{table}"\n')
    shared = parse_json(topdp("stats", "--config", sites / "job.toml", *schema, "--json"))
    assert shared["method"] == "correlated" and shared["records"] == 400


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([], "either the files of the sites or --config, got neither"),
        (["north.csv"], "data.schema: expected the public range or values of every column"),
        (["north.csv", "--schema", "narrow.toml"], "list of public values for the column 'dose'"),
        (["north.csv", "--schema", "schema.toml", "--quantiles", "half"], "numbers between 0 and 1"),
        (["north.csv", "--schema", "schema.toml", "--set", "data.batch={cycle=5}"], 'expected "full"'),
        (["nowhere.csv", "--schema", "schema.toml"], "nowhere.csv"),
        (["data.npz", "--schema", "schema.toml"], "Expected tables in data.name"),
    ],
)
def test_wrong_use_is_refused(topdp, sites, monkeypatch, command, says):
    monkeypatch.chdir(sites)
    (sites / "narrow.toml").write_text("[ranges]\nage = [0, 100]\n[categories]\nill = ['no', 'yes']\n")
    (sites / "data.npz").write_bytes(b"")
    done = topdp("stats", *command)
    assert done.code in (2, 5) and says in done.err
