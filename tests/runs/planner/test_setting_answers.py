"""The planner's answers about a setting: they agree with the run, and unknown numbers are not guessed."""

import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from builders import CountingCache, blobs_file, plan_answers
from topdp.errors import InputError
from topdp.learning.models import MODELS
from topdp.privacy.answers import ANSWERS
from topdp.runs import run, run_outline
from topdp.runs.config import read
from topdp.runs.methods import METHODS
from topdp.runs.named_records import named_features
from topdp.runs.planner import observer_cache, setting_answers
from topdp.runs.planner.plan_traffic import numbers_in_a_row
from topdp.runs.planner.setting_answers import NOT_YET, PAGE, PlannerQuestion, stages
from topdp.runs.resolved_run import ResolvedRun

FEW = ["topology.agents=5", "topology.kind=ring", "rounds=3", "privacy.clip=1"]
MODES = [(name, mode) for name, method in METHODS.items() for mode in method.modes]


def settings(*changes):
    return read(changes=[*FEW, *changes])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mode"), MODES)
def test_the_planners_answers_equal_what_a_run_writes(name, mode, tmp_path):
    """The oracle is the run's plan, noise and every number of privacy.json, bit for bit."""
    blobs_file(tmp_path / "blobs.npz", 100)
    config = settings(f"data.name={tmp_path / 'blobs.npz'}", f"method.name={name}", f"method.mode={mode}")
    found = plan_answers(config)
    run.run(config, tmp_path / "run", device="cpu")
    written = json.loads((tmp_path / "run" / "privacy.json").read_text())
    privacy = found["privacy"]
    assert privacy["plan"] == written["plan"]
    for key, values in written.items():
        if isinstance(values, dict) and key not in ("status", "reasons"):
            assert {name: privacy[key][name] for name in values if values[name] is not None} == {
                name: value for name, value in values.items() if value is not None
            }, key
        elif key not in ("seal", "status", "reasons", "warnings"):
            assert privacy[key] == values, key
    asked = [name for name, status in written["status"].items() if status != "not asked"]
    assert asked and all(privacy["status"][name] == written["status"][name] for name in asked)
    assert found["pending"] == [] and NOT_YET not in privacy["status"].values()


@pytest.mark.parametrize(
    ("model", "data", "changes"),
    [
        *((model, data, []) for model in ("mlp", "linear") for data in ("mnist", "cifar10", "breast-cancer")),
        ("cnn", "mnist", []),
        ("cnn", "cifar10", []),
        ("mlp", "diabetes", ["train.loss=mse"]),
        ("linear", "cifar10", ["data.features=scattering"]),
        ("linear", "mnist", ["data.features=scattering"]),
    ],
)
def test_a_row_has_as_many_numbers_as_the_model(model, data, changes):
    import torch

    from topdp.data.catalogue import CATALOGUE

    config = read(changes=[f"model.name={model}", f"data.name={data}", *changes])
    entry = CATALOGUE[data]
    shape = entry.shapes["train_inputs"][1:]
    if config.data.features != "none":
        shape = named_features(config).shape(torch.zeros(shape))
    made = MODELS[model](shape, entry.classes if config.train.loss == "cross-entropy" else 1)
    assert numbers_in_a_row(config) == (sum(p.numel() for p in made.parameters()), "")


def test_the_unknown_size_of_a_users_model_has_a_reason():
    found = plan_answers(settings("model.name=mine:network"))["traffic"]
    assert found["numbers_in_a_row"] is found["bytes_a_round"]["all"] is None and "mine" in found["reason"]
    assert found["rows_a_round"] == {"agent": 2.0, "all": 10.0}


def test_bytes_are_those_of_encoded_rows():
    """Compared with the codec of real agents: only a header of about 70 bytes differs."""
    from topdp.agents.wire.row_payload import encode

    found = plan_answers(settings("method.name=dsgd"))["traffic"]
    row = len(encode(np.ones(found["numbers_in_a_row"], np.float32)))
    assert found["bytes_a_round"]["all"] == pytest.approx(10 * row, abs=200)
    assert found["bytes_in_all"] == 4 * found["bytes_a_round"]["all"]


def test_quick_answers_come_first_and_later_ones_do_not_contradict_them(monkeypatch):
    monkeypatch.setattr(
        setting_answers, "INSTANT_SECONDS", 0.0
    )  # all computations of observers count as slow
    seen = list(stages(PlannerQuestion.of(settings("method.name=top"))))
    assert [one["pending"] for one in seen] == [
        list(ANSWERS), list(ANSWERS), ["outsider", "view"], ["view"], [],
    ]  # fmt: skip
    assert seen[0]["sigma"] is None and set(seen[0]["privacy"]["status"].values()) == {NOT_YET}
    assert all(value is None for value in seen[0]["privacy"]["epsilon"].values())
    for before, after in itertools.pairwise(seen[2:]):
        for name, value in before["privacy"]["epsilon"].items():
            assert value is None or after["privacy"]["epsilon"][name] == value
        assert before["sigma"] == after["sigma"]
    # Noise that is stated to suffice does suffice: the worst case covers every answer.
    assert min(seen[0]["sigma_at_most"]) >= max(seen[-1]["sigma"])
    enough = settings("method.name=top", f"privacy.sigma={seen[0]['sigma_at_most'][0]}")
    assert max(plan_answers(enough)["privacy"]["epsilon"].values()) <= 1.0 + 1e-9
    # The noise from the quick bound suffices for the guarantee, and is nearly minimal.
    near = seen[1]["sigma_at_most"][0]
    assert max(seen[-1]["sigma"]) <= near <= 1.02 * max(seen[-1]["sigma"])
    assert near < min(seen[0]["sigma_at_most"])
    enough = settings("method.name=top", f"privacy.sigma={near}", "privacy.answers=['adaptive']")
    assert plan_answers(enough)["privacy"]["epsilon"]["adaptive"] <= 1.0 + 1e-9
    quick = list(stages(PlannerQuestion.of(settings("method.name=top")), quick=True))
    assert [one["pending"] for one in quick] == [one["pending"] for one in seen[:2]]


@pytest.mark.slow
def test_quick_omits_only_slow_answers():
    """For the default of 30 agents: the guarantee is slow for top, only the view is slow for dsgd."""
    top = plan_answers(read(), quick=True)
    assert set(top["pending"]) == set(ANSWERS) and top["sigma_at_most"] is not None
    dsgd = plan_answers(read(changes=["method.name=dsgd"]), quick=True)
    assert dsgd["pending"] == ["view"] and dsgd["privacy"]["status"]["view"] == NOT_YET
    assert dsgd["privacy"]["epsilon"]["adaptive"] == pytest.approx(1, rel=1e-5)


def test_noise_is_relative_to_that_for_pooled_records():
    assert plan_answers(settings("method.name=central"))["noise"]["average"] == pytest.approx(1)
    alone = plan_answers(settings("method.name=dsgd"))["noise"]["average"]
    assert alone == pytest.approx(5, rel=1e-4)  # five agents, each with noise for a fifth of the records
    assert plan_answers(settings("method.name=no-noise"))["noise"]["average"] == 0
    adam = plan_answers(settings("method.name=muffliato", "train.optimiser=adam"))["noise"]
    assert adam["average"] is None and "Adam" in adam["reason"]


CHANGES = [
    ["privacy.epsilon=3"],
    ["privacy.delta=1e-7"],
    ["privacy.clip=0.3", "data.records=77"],
    ["privacy.adjacency=replace-one"],
]


@pytest.mark.parametrize("method", ["top", "correlated"])
def test_cached_answers_equal_fresh_ones(method):
    base = [f"method.name={method}", "method.chebyshev=false", "method.gossip=1"]
    kept = CountingCache()
    plan_answers(settings(*base), memory=kept)
    before = kept.hits
    for changes in CHANGES:
        config = settings(*base, *changes)
        again, anew = plan_answers(config, memory=kept), plan_answers(config)
        for key in ("epsilon_per_agent", "mu_per_agent"):
            for name, values in anew["privacy"][key].items():
                if values is not None:
                    assert again["privacy"][key][name] == pytest.approx(values, rel=1e-6), (changes, name)
        assert again["sigma"] == pytest.approx(anew["sigma"], rel=1e-6)
        assert again["noise"]["average"] == pytest.approx(anew["noise"]["average"], rel=1e-6)
    assert kept.hits == before + 3 * len(CHANGES)  # every answer to every question


OTHERS = [
    ["method.alpha=0.6"],
    ["rounds=4"],
    ["privacy.colluders=2"],
    ["topology.kind=complete"],
    ["seed=1", "topology.kind=random", "topology.connection=0.6"],
    ["method.noise_schedule.factor=0.5", "method.noise_schedule.period=1", "method.name=top-dp"],
    ["data.batch={cycle=20}"],
    ["data.batch={poisson=20}"],
    ["privacy.epsilon=[1,2,1,1,1]"],
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_other_questions_are_not_answered_from_the_cache(changes):
    kept = observer_cache.ObserverCache()
    base = ["method.name=top", "data.records=60"]
    plan_answers(settings(*base), memory=kept)
    config = settings(*base, *changes)
    again, anew = plan_answers(config, memory=kept)["privacy"], plan_answers(config)["privacy"]
    for name, value in anew["epsilon"].items():
        assert (again["epsilon"][name] is None) == (value is None)
        assert value is None or again["epsilon"][name] == pytest.approx(value, rel=1e-6), name


def test_the_cache_has_a_limited_size(monkeypatch):
    monkeypatch.setattr(observer_cache, "MAX_REMEMBERED_ANSWERS", 2)
    kept = observer_cache.ObserverCache()
    for rounds in (1, 2, 3):
        plan_answers(settings("method.name=top", f"rounds={rounds}"), memory=kept)
    assert len(kept._values) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["topology.agents=1000000"], "topology.agents: expected at most 100"),
        (["rounds=900000"], "rounds: expected at most 5000"),
    ],
)
def test_too_many_agents_or_rounds_are_rejected_before_a_graph_is_built(changes, said, monkeypatch):
    monkeypatch.setattr(run_outline, "named_graph", lambda config: pytest.fail("a graph was made"))
    with pytest.raises(InputError, match=said):
        PlannerQuestion.of(settings(*changes), PAGE)


def test_too_many_edges_are_rejected_before_a_plan_is_written(monkeypatch):
    monkeypatch.setattr(ResolvedRun, "write_plan", lambda *given: pytest.fail("a plan was written"))
    with pytest.raises(InputError, match="rounds: expected at most 202 with 100 agents and 4950 edges"):
        PlannerQuestion.of(settings("topology.agents=100", "topology.kind=complete", "rounds=203"), PAGE)


def test_noise_that_is_too_slow_to_compute_has_a_reason():
    found = plan_answers(settings("method.name=dsgd"), limits=replace(PAGE, noise=99.0))["noise"]
    assert (
        found["average"] is None
        and "The noise of 5 rows in 4 releases takes too long to compute here" in found["reason"]
    )


def test_infinite_answers_have_a_status_and_are_null():
    found = plan_answers(settings("method.name=no-noise"))
    assert found["privacy"]["status"]["adaptive"] == "infinite"
    assert found["privacy"]["epsilon"]["adaptive"] is None
    assert not any(isinstance(one, float) and math.isinf(one) for one in found["sigma"])
    json.dumps(found, allow_nan=False)


ADVISED = [
    [],
    ["method.name=dsgd"],
    ["method.name=top", "method.mode=async", "rounds=9"],
    ["method.name=central"],
    ["privacy.epsilon=2"],
    ["privacy.colluders=2"],
    ["method.secrets=links"],
    ["method.gossip=1"],
    ["topology.agents=6"],
    ["data.records=50"],
    ["train.learning_rate=[1,1,1]"],
]


def test_cached_recommendations_equal_fresh_ones():
    kept = CountingCache()
    for changes in ADVISED:
        question = PlannerQuestion.of(settings("method.name=plain", *changes))
        assert setting_answers.recommendation(question, memory=kept) == setting_answers.recommendation(
            question
        ), changes
    assert kept.hits == 2  # another method, and another method and mode with more rounds


def test_a_recommended_command_repeats_no_key():
    given = ["my.toml", "--set", "method.name=top", "--set", "seed=4"]
    command = setting_answers.recommendation(PlannerQuestion.of(settings()), given)["command"]
    assert command.startswith("topdp run my.toml --set seed=4 --set method.name=") and "=top" not in command
