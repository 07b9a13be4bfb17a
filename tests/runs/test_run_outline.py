"""Run outlines: every name in a configuration becomes an object; all components get the same batches."""

from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from builders import blobs_file, registered_names
from topdp.data import PARTITIONS
from topdp.errors import InputError
from topdp.plan import Cycle, Full, Poisson, for_curvature, power_of_rate, step_decay
from topdp.plan.schedules import FADING_KINDS
from topdp.privacy import ANSWERS, CALIBRATIONS, GUARANTEES
from topdp.runs import resolve as resolving
from topdp.runs.config import DataConfig, MethodConfig, PrivacyConfig, TopologyConfig, TrainConfig, read
from topdp.runs.methods import METHODS
from topdp.runs.resolve import resolve
from topdp.runs.run_outline import RunOutline, analysis_of, batches_of
from topdp.runs.run_stacks import name_of_shards
from topdp.topology import FAMILIES


def protocol(config):
    return resolve(config, counts=(100,) * 30).protocol


@pytest.mark.parametrize(
    ("section", "key", "known"),
    [
        (TopologyConfig, "kind", FAMILIES),
        (MethodConfig, "name", ["auto", *METHODS]),
        (MethodConfig, "calibration", CALIBRATIONS),
        (DataConfig, "partition", PARTITIONS),
        (TrainConfig, "fading", FADING_KINDS),
    ],
)
def test_every_name_that_a_key_accepts_is_implemented(section, key, known):
    field = section.model_fields[key]
    names = registered_names(field.metadata)
    if not names:  # an optional key has the type `names | None`
        names = get_args(get_args(field.annotation)[0]) or get_args(field.annotation)
    assert sorted(names) == sorted(known)


def test_every_answer_that_takes_a_budget_can_be_a_guarantee():
    assert [PrivacyConfig(guarantee=name).guarantee for name in GUARANTEES] == list(GUARANTEES)
    for name in sorted(set(ANSWERS) - set(GUARANTEES)):
        with pytest.raises(InputError, match=f"privacy.guarantee: got '{name}'"):
            read(changes=[f"privacy.guarantee={name}"])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_own_share_is_passed_to_protocols_that_reuse_noise(mode):
    changes = [f"method.mode={mode}", "method.own_share=0.5"]
    assert protocol(read(changes=changes)).own_share == 0.5
    assert protocol(read(changes=[f"method.mode={mode}"])).own_share == 1.0
    assert not hasattr(protocol(read(changes=[*changes, "method.name=plain"])), "own_share")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([], lambda rates: step_decay(0.9, 1000, 1500)),  # top-dp
        (["method.name=plain"], np.ones_like),
        (["method.noise_schedule.kind=constant"], np.ones_like),
        (
            ["method.name=plain", "method.noise_schedule.kind=steps"],
            lambda rates: step_decay(0.9, 1000, 1500),
        ),
        (
            ["method.name=plain", "method.noise_schedule.kind=steps", "method.noise_schedule.period=7"],
            lambda rates: step_decay(0.9, 7, 1500),
        ),
        (["method.noise_schedule.kind=power"], lambda rates: power_of_rate(rates, 0.5)),
        (
            ["method.noise_schedule={kind='power', exponent=0.25}"],
            lambda rates: power_of_rate(rates, 0.25),
        ),
        (
            ["method.noise_schedule={kind='curvature', curvature=[1, 2.5]}"],
            lambda rates: for_curvature(rates, [1.0, 2.5]),
        ),
    ],
)
def test_every_kind_of_noise_schedule_gives_its_noise(changes, expected):
    schedule = resolve(read(changes=["rounds=1500", *changes]), counts=(100,) * 30).schedule
    np.testing.assert_array_equal(schedule.noise, schedule.rate * expected(schedule.rate))


def test_a_method_has_a_default_noise_kind_unless_noise_is_on_estimates(monkeypatch):
    monkeypatch.setitem(METHODS, "plain", replace(METHODS["plain"], noise_kind="power"))
    assert RunOutline.of(read(changes=["method.name=plain"])).noise_kind == "power"
    assert (
        RunOutline.of(read(changes=["method.name=plain", "method.noise_schedule.kind=steps"])).noise_kind
        == "steps"
    )
    assert (
        RunOutline.of(read(changes=["method.name=plain", "method.noise_on=estimate"])).noise_kind
        == "constant"
    )
    assert RunOutline.of(read(changes=["method.noise_on=estimate"])).noise_kind == "steps"


@pytest.mark.parametrize(
    "batch, expected",
    [
        ('"full"', (Full(9), Full(5))),
        ("{cycle=4}", (Cycle(9, 4), Cycle(5, 4))),
        ("{poisson=4}", (Poisson(9, 4), Poisson(5, 4))),
    ],
)
def test_the_run_and_the_account_use_the_same_batches(batch, expected):
    config = read(changes=[f"data.batch={batch}", "train.weighting=agents"])
    assert batches_of(config, (9, 5)) == expected
    assert analysis_of(config, (9, 5)).batches == expected


@pytest.mark.parametrize("batch", ["{cycle=6}", "{poisson=6}"])
def test_batches_larger_than_the_smallest_shard_are_rejected(batch):
    config = read(changes=[f"data.batch={batch}", "train.weighting=agents"])
    with pytest.raises(
        InputError, match=r"at most 5 records, because agent 1 has no more, got 6\. Use smaller"
    ):
        batches_of(config, (9, 5, 7))


@pytest.fixture
def derived(monkeypatch):
    """The configurations of which outlines and resolved runs were made."""
    outlines, resolutions = [], []
    outline_of, records_of = RunOutline.of.__func__, resolving.records_of

    def counted_outline(cls, config, graph=None):
        outlines.append(config)
        return outline_of(cls, config, graph)

    def counted_records(outline, counts):
        resolutions.append(outline.config)
        return records_of(outline, counts)

    monkeypatch.setattr(RunOutline, "of", classmethod(counted_outline))
    monkeypatch.setattr(resolving, "records_of", counted_records)
    return outlines, resolutions


@pytest.mark.parametrize(
    "command, runs",
    [
        (["run"], 1),
        (["compare", "--methods", "plain,top"], 2),
        (["compare", "--methods", "plain,top", "--seeds", "2"], 4),
        (["sweep", "--over", "privacy.sigma=1,2,3", "--seeds", "2"], 6),
        (["sweep", "--over", "train.optimiser=sgd,adam", "--set", "method.name=muffliato"], 2),  # not stacked
    ],
)
def test_a_command_resolves_each_of_its_runs_once(topdp, derived, tmp_path, command, runs):
    data = blobs_file(tmp_path / "blobs.npz", 300)
    settings = [f'data.name="{data}"', "topology.agents=6", "topology.connection=0.5", "rounds=4"]
    changes = [part for change in settings for part in ("--set", change)]
    done = topdp(*command, *changes, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    outlines, resolutions = derived
    assert (len(outlines), len(resolutions)) == (runs, runs)
    assert topdp(*command, *changes, "--out", tmp_path / "out").code == (2 if command == ["run"] else 0)
    assert len(outlines) <= 2 * runs and len(resolutions) <= 2 * runs


def test_pooled_records_are_those_of_the_agents_of_their_own_graph():
    """Two runs with as many agents after pooling, but with records of different agents."""
    pooled = [read(changes=["method.name=central", f"topology.agents={agents}"]) for agents in (6, 8)]
    outlines = [RunOutline.of(config) for config in pooled]
    assert len({name_of_shards(outline) for outline in outlines}) == 2
    assert [outline.unpooled.graph.agents for outline in outlines] == [6, 8]
