"""Tests of the table of readings: the noise of each comparison, the verdicts, and the files."""

import time
from dataclasses import astuple, fields, replace

import pytest

from topdp.errors import InputError
from topdp.experiments import readings, reproduce
from topdp.experiments.figure_runner import FigureRuns
from topdp.experiments.lenses import FULL_SCALE
from topdp.experiments.readings import AdaptiveNoise, ReadingRow, equalities, read_rows
from topdp.runs.planning import plan_and_account
from topdp.runs.resolve import resolve

ALL = readings.readings()
CIFAR = next(one for one in ALL if one.data == "cifar10")


def quiet(text):
    pass


def row(top, plain):
    return ReadingRow(
        choice="batch", reading="one", rounds=3, equal="σ", proposed="top",
        sigma_proposed=0.1, sigma_plain=0.1, accuracy_proposed=top, accuracy_plain=plain,
    )  # fmt: skip


def test_every_reading_differs_from_ours_and_has_a_valid_configuration():
    trees = [one.configs(FULL_SCALE, "top", lambda config: 1.0)[0].model_dump_json() for one in ALL]
    assert len(set(trees)) == len(ALL) == len({(one.choice, one.reading) for one in ALL})
    assert not ALL[0].changes and ALL[0].rounds(FULL_SCALE) == 300
    assert {one.choice for one in ALL} >= {"noise on", "batch", "fading", "star", "mesh", "T", "data"}


@pytest.mark.parametrize("reading", ALL, ids=lambda one: f"{one.choice}, {one.reading}")
def test_each_comparison_holds_equal_what_it_names(reading, scale, tmp_path):
    reading = replace(reading, length=6.0)
    ways = equalities(AdaptiveNoise(tmp_path / "sigma.json", quiet))
    for method in reading.proposed:
        for name, ratio in (("σ", 1.0), ("claimed ε", 24.93)):
            own, plain = (reading.configs(scale, m, ways[name])[0].privacy.sigma for m in (method, "plain"))
            assert own / plain == pytest.approx(ratio, abs=0.01)
        for one in (method, "plain"):
            (config,) = reading.configs(scale, one, ways["proved ε"])
            _, account = plan_and_account(resolve(replace_answers(config)))
            assert 0.999 < account.adaptive.largest <= 1


def replace_answers(config):
    privacy = config.privacy.model_copy(update={"answers": ["adaptive"]})
    return config.model_copy(update={"privacy": privacy})


def test_the_published_noise_takes_the_sensitivity_of_all_records(scale, tmp_path):
    one, full = (next(r for r in ALL if r.reading == name) for name in ("one record", "all records"))
    ways = equalities(AdaptiveNoise(tmp_path / "sigma.json", quiet))

    def sigma(reading, equal):
        return replace(reading, length=1.0).configs(scale, "plain", ways[equal])[0].privacy.sigma

    assert sigma(one, "σ") == sigma(full, "σ") == pytest.approx(sigma(full, "proved ε"), rel=1e-4)
    assert sigma(one, "proved ε") > 2 * sigma(one, "σ")


@pytest.mark.parametrize(
    "top, plain, verdict, difference",
    [
        ("0.9 0.8", "0.8 0.7", "holds", 0.1),
        ("0.9 0.6", "0.8 0.7", "seeds differ", 0.0),
        ("0.8 0.7", "0.8 0.8", "does not hold", -0.05),
        ("0.14 0.12", "0.11 0.10", "neither learns", 0.025),
        ("0.10 0.10", "0.11 0.30", "does not hold", -0.105),
    ],
)
def test_the_claim_needs_every_seed(top, plain, verdict, difference):
    found = row(top, plain)
    assert found.verdict == verdict
    assert sum(found.differences) / 2 == pytest.approx(difference)


@pytest.fixture
def two_readings(monkeypatch):
    monkeypatch.setattr(readings, "readings", lambda: [ALL[0], CIFAR])


def test_the_table_follows_from_the_csv_file(two_readings, scale, tmp_path):
    reproduce.reproduce(["readings"], ["same"], scale, "cpu", tmp_path, quiet)
    text = (tmp_path / "readings.md").read_text()
    rows = read_rows(tmp_path / "readings.csv")
    assert [(one.equal, one.proposed) for one in rows[:3]] == [(name, "top") for name in readings.EQUALITIES]
    assert [one.proposed for one in rows[3:]] == ["top", "top-dp"] * 3
    assert all(f"| {one.equal} | {one.proposed} | {one.sigma_proposed:.4g} |" in text for one in rows)
    (tmp_path / "readings.md").unlink()
    reproduce.redraw(["readings"], ["same"], scale, tmp_path)
    assert (tmp_path / "readings.md").read_text() == text
    note = reproduce.read_json(tmp_path / "made.json")["readings"]
    assert note["command"] == "topdp reproduce readings" and note["runs"] == 13


def test_after_the_time_limit_finished_readings_are_written(two_readings, scale, tmp_path):
    runs = FigureRuns(tmp_path / "runs", "cpu", test_records=lambda config: 50, progress=quiet)

    def stop_at_the_second(text):
        if CIFAR.reading in text:
            runs.until = time.monotonic()

    used = readings.make("readings", scale, runs, tmp_path, stop_at_the_second)
    assert {one.choice for one in read_rows(tmp_path / "readings.csv")} == {ALL[0].choice}
    assert used and all(config in runs for config in used)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.partition("\n")[0],
        lambda text: text.rpartition(",")[0],
        lambda text: text.rpartition(" ")[0],
        lambda text: text.replace("0.1", "x.1"),
    ],
)
def test_a_damaged_csv_file_is_refused(damage, tmp_path):
    file = tmp_path / "readings.csv"
    readings.write_csv_lines(
        file, [[field.name for field in fields(ReadingRow)], astuple(row("0.1 0.2", "0.1 0.2"))]
    )
    assert read_rows(file)[0].differences == [0.0, 0.0]
    file.write_text(damage(file.read_text()))
    with pytest.raises(InputError, match="readings"):
        read_rows(file)
