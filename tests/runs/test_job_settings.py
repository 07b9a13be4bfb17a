"""Settings that follow the job: the noise of outputs that they promise is that of the plans."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topdp.errors import InputError
from topdp.privacy.residual_noise import residual_noise
from topdp.runs import config
from topdp.runs.config import dotted
from topdp.runs.job_gradient import named_gradient
from topdp.runs.job_settings import CLASS_OUTPUT_NOISE, MAX_ROUNDS, MIN_ROUNDS, follows_job
from topdp.runs.planning import plan_and_account
from topdp.runs.resolve import resolve
from topdp.runs.run_outline import RunOutline

BREAST_CANCER = ["data.name=breast-cancer", "topology.kind=complete", "topology.agents=5"]


def job(*changes):
    return config.read(preset="auto", changes=[*BREAST_CANCER, *changes])


def output_noise(run):
    """Return the standard deviation of the noise of an output of the average model, at the end."""
    plan, _ = plan_and_account(run)
    return math.sqrt(residual_noise(plan).average[-1]) * named_gradient(run).norm


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        (["method.name=central"], (900,)),
        (["method.name=central", "privacy.adjacency=replace-one"], (900,)),
        (["method.name=central", "privacy.epsilon=5.0", "train.fading=none"], (900,)),
        (["method.name=central", "train.warmup=5", "privacy.clip=9.0"], (900,)),
        (["method.name=central", "data.batch={cycle=180}", "rounds=99"], (900,)),
        (["method.name=muffliato", "topology.agents=2"], (450, 450)),
        (["method.name=dsgd", "topology.agents=3"], (300, 300, 300)),
        (["method.name=muffliato", "train.optimiser=momentum", "rounds=200"], (180,) * 5),
    ],
)
def test_for_classes_the_noise_of_an_output_is_as_promised(changes, counts):
    run = resolve(job(*changes), counts=counts)
    assert output_noise(run) == pytest.approx(CLASS_OUTPUT_NOISE, rel=0.05)


def test_pair_noise_of_unequal_sites_costs_a_little_more():
    run = resolve(job(), counts=(400, 230, 140, 80, 50))
    assert run.method.name == "correlated" and 1.0 < output_noise(run) < 1.3


def test_for_numbers_travel_follows_the_root_of_the_records():
    few, many = (
        resolve(job("method.name=central", "train.loss=mse", "rounds=100"), counts=(count,)).config
        for count in (1000, 16_000)
    )
    assert many.train.learning_rate / few.train.learning_rate == pytest.approx(4.0, rel=0.01)
    assert many.privacy.clip == few.privacy.clip


@given(st.integers(30, 10**6), st.floats(0.05, 50.0))
def test_rounds_have_limits(records, epsilon):
    wanted = job("method.name=central", "privacy.clip=1.0", "train.learning_rate=1.0")
    wanted = wanted.model_copy(update={"privacy": wanted.privacy.model_copy(update={"epsilon": epsilon})})
    assert MIN_ROUNDS <= resolve(wanted, counts=(records,)).config.rounds <= MAX_ROUNDS


def test_given_numbers_are_kept():
    run = resolve(job("rounds=33", "privacy.clip=0.7", "train.learning_rate=0.3"), counts=(90,) * 5).config
    assert (run.rounds, run.privacy.clip, run.train.learning_rate) == (33, 0.7, 0.3)


def test_a_resolved_run_has_numbers_only():
    run = resolve(job(), counts=(90,) * 5)
    keys = dotted(run.config.model_dump())
    assert not follows_job(run.config)
    assert [key for key, value in keys.items() if value == "auto"] == [
        "robust.radius"
    ]  # chosen in each round
    assert resolve(run.config, counts=(90,) * 5).config == run.config


def test_adam_needs_a_learning_rate():
    with pytest.raises(InputError, match="whose steps do not scale"):
        resolve(job("train.optimiser=adam"), counts=(90,) * 5)
    assert resolve(job("train.optimiser=adam", "train.learning_rate=0.01"), counts=(90,) * 5)


def test_the_rule_agrees_with_the_settings_found_for_mnist():
    """The travel of the preset, which was tuned by itself."""
    tuned = config.read(preset="best-mnist")
    changes = ["rounds=auto", "privacy.clip=auto", "train.learning_rate=auto"]
    found = resolve(config.read(preset="best-mnist", changes=changes)).config
    travels = [c.privacy.clip * c.train.learning_rate * (c.rounds + 3) / 2 for c in (tuned, found)]
    assert travels[1] == pytest.approx(travels[0], rel=0.1) and found.privacy.clip == tuned.privacy.clip


@pytest.mark.parametrize("preset", [name for name in config.presets() if name != "auto"])
def test_other_presets_state_their_settings(preset):
    wanted = config.read(preset=preset)
    assert not follows_job(wanted) and wanted.method.name != "auto"


def test_stored_configurations_keep_the_former_defaults():
    stored = config.parse_stored({"seed": 0}, "stored")
    assert (stored.rounds, stored.privacy.clip, stored.train.learning_rate) == (150, 4.0, 0.5)
    assert stored.method.name == "top-dp"


def test_outlines_name_the_method():
    assert RunOutline.of(job()).config.method.name == "correlated"
