"""Accounts of rounded rows: answers for which every row is seen do not change; others must be refused."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from builders import PROTOCOLS, constant_schedule
from topdp import topology
from topdp.data import Shards
from topdp.learning.gradients import ClippedGradients
from topdp.plan import Full, Optimiser, PerRound, Plan, PlanError, Poisson, Robust, optimised, plan_file
from topdp.plan.noise_key import NoiseKey
from topdp.privacy import Analysis, account, adaptive, calibrate, coalitions, exposure, outsider, spending
from topdp.privacy.basics.refusals import NotCovered
from topdp.privacy.observers.adaptive import has_short_form
from topdp.privacy.observers.observer_filter import Public
from topdp.privacy.query import Query
from topdp.protocols import Central, Muffliato
from topdp.simulator.engine import Engine, Intervention

GRAPH = topology.random(8, 0.4, seed=2)
ANSWERS = ("claimed", "view", "adaptive", "outsider", "worst_case")
OPEN = {"adaptive", "outsider", "worst_case"}
ANSWERED = {
    "top-sync": {"outsider", "worst_case"},  # a single agent does not read messages between others
    "plain-sync": OPEN,
    "top-async": OPEN,
    "plain-async": OPEN,
    "dsgd": OPEN,
    "muffliato": OPEN,
    "correlated": OPEN,
    "alone": OPEN,
}
"""Written down by hand; what is done follows from who reads which rows of a plan."""


def write(name, optimiser=None, deviation=1.0, rounded="bfloat16", graph=GRAPH):
    schedule = constant_schedule(4, rate=0.5)
    plan = PROTOCOLS[name](0.4).plan(graph, schedule, deviation * np.linspace(0.8, 1.2, graph.agents), seed=5)
    plan = optimised(plan, optimiser, schedule.rate) if optimiser else plan
    return replace(plan, rounded=rounded)


def analysis(batches=None):
    return Analysis("tight", (batches or Full(50),) * GRAPH.agents, clip=1.0)


def test_the_table_contains_every_protocol():
    assert set(ANSWERED) == set(PROTOCOLS)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [Full(50), Poisson(50, 10)], ids=["full", "poisson"])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_an_answer_is_unchanged_by_rounding_or_refused(name, batches):
    found, plain = (
        account(
            write(name, rounded=rounded), analysis(batches), 1e-5, answers=["view", "adaptive", "outsider"]
        )
        for rounded in ("bfloat16", None)
    )
    for answer in ANSWERS:
        rounded, expected = found.answers[answer], plain.answers[answer]
        if answer in ANSWERED[name]:
            np.testing.assert_array_equal(rounded.epsilon, expected.epsilon)
        else:
            assert rounded.epsilon is None and "rounded to bfloat16" in rounded.reason


@pytest.mark.parametrize("guarantee", ["claimed", "view", "adaptive", "worst-case"])
@pytest.mark.parametrize("name", PROTOCOLS)
def test_calibration_and_curve_are_refused_where_the_answer_is(name, guarantee):
    def writer(deviation):
        return write(name, deviation=deviation)

    spent = spending(write(name), analysis(), 0, 1e-5)
    if guarantee.replace("-", "_") in ANSWERED[name]:
        plain = spending(write(name, rounded=None), analysis(), 0, 1e-5)
        np.testing.assert_array_equal(spent.curve(guarantee), plain.curve(guarantee))
        calibrate(writer, analysis(), guarantee, np.ones(GRAPH.agents), 1e-5)
        return
    with pytest.raises(NotCovered, match="rounded to bfloat16"):
        spent.curve(guarantee)
    with pytest.raises(NotCovered, match="rounded to bfloat16"):
        calibrate(writer, analysis(), guarantee, np.ones(GRAPH.agents), 1e-5)


def test_views_of_coalitions_are_refused():
    with pytest.raises(NotCovered, match="rounded to bfloat16"):
        coalitions(write("dsgd"), exposure(GRAPH.agents, 0.1), size=2)


def test_many_coalitions_are_refused_because_of_rounding_not_their_number():
    big = topology.random(40, 0.2, seed=0)
    plan = write("top-sync", graph=big)
    with pytest.raises(NotCovered, match="rounded to bfloat16"):
        adaptive(plan, exposure(40, 0.1), query=Query(colluders=5))


def test_rounding_does_not_change_what_all_others_together_learn_in_top():
    plan, exposed = write("top-sync"), exposure(GRAPH.agents, 0.1)
    everybody = GRAPH.agents - 1
    assert has_short_form(plan, Public.ESTIMATES, everybody)
    found = adaptive(plan, exposed, Query(colluders=everybody)).worst()
    np.testing.assert_array_equal(
        found,
        adaptive(replace(plan, rounded=None), exposed, Query(colluders=everybody)).worst(),
    )


@pytest.mark.parametrize("name", ["dsgd", "plain-sync"])
def test_rounding_does_not_change_the_answer_with_memories(name):
    plan = write(name, Optimiser("momentum"))
    found = adaptive(plan, exposure(GRAPH.agents, 0.1)).worst()
    np.testing.assert_array_equal(
        found, adaptive(write(name, rounded=None), exposure(GRAPH.agents, 0.1)).worst()
    )


def test_rounding_does_not_change_the_answer_for_one_party():
    plan = Central().plan(topology.single(), constant_schedule(4, rate=0.5), np.ones(1), 0)
    alone = Analysis("tight", (Full(50),), clip=1.0)
    epsilon = [
        account(
            replace(plan, rounded=rounded), alone, 1e-5, answers=["adaptive"], query=Query(colluders=0)
        ).epsilon
        for rounded in (None, "bfloat16")
    ]
    assert epsilon[0]["adaptive"] == epsilon[1]["adaptive"] and epsilon[1]["claimed"] is None


def test_the_digest_and_the_file_state_that_rows_are_rounded(tmp_path):
    plan = write("dsgd")
    assert plan.digest() != replace(plan, rounded=None).digest()
    plan_file.save(plan, tmp_path / "plan.npz")
    assert plan_file.load(tmp_path / "plan.npz").digest() == plan.digest()
    with np.load(tmp_path / "plan.npz") as file:
        assert '"format": 3' in str(file["meta"])  # versions without rounding cannot read it


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: replace(write("dsgd"), rounded="int8"), "rounded to bfloat16, got 'int8'"),
        (lambda: replace(write("dsgd"), robust=Robust("trimmed")), "got robust mixing .trimmed"),
        (
            lambda: replace(
                optimised(
                    Muffliato(1).plan(GRAPH, constant_schedule(2), np.ones(8), 0),
                    Optimiser("adam"),
                    np.ones(3),
                ),
                rounded="bfloat16",
            ),
            "got Adam",
        ),
    ],
)
def test_plans_that_cannot_be_rounded_are_rejected(make, words):
    with pytest.raises(PlanError, match=words):
        make()


class Pulled(nn.Module):
    """(records [b, 1]) -> losses [b]: a record pulls every parameter by its value."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.full((count,), 1000.0))

    def forward(self, records: Tensor) -> Tensor:
        return records[:, 0] * self.x.sum()


def given(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs


def hidden_plan(rounded):
    """1 sends 0 a noisy row that 2 never sees; 0 sends 2 its part of the estimate, and its gradient.

    Near 1000 the numbers of bfloat16 are 4 apart, so that the noise which hides 0's gradient is lost.
    """
    none = [-1, -1]
    source = np.array([[[0, -1], [1, -1], [2, -1], [1, -1], none], [[0, -1], [1, -1], [2, -1], none, [3, 0]]])
    weight = np.array([np.tile([1.0, 0.0], (5, 1)), [[1, 0], [1, 0], [1, 0], [0, 0], [1, -1]]])
    draw = np.array([[[-1]] * 3 + [[0], [-1]], [[-1]] * 4 + [[1]]])
    return Plan(
        agents=3,
        owner=np.array([0, 1, 2, 1, 0]),
        source=PerRound.each(source),
        weight=PerRound.each(weight),
        carries=PerRound.each(np.array([[False] * 5, [False] * 4 + [True]])),
        rate=np.array([0.0, 1.0]),
        draw=PerRound.each(draw),
        std=PerRound.each(np.where(draw == 0, 0.25, np.where(draw == 1, 0.02, 0.0))),
        scale=np.ones(2),
        known_by=np.array([[1], [0]]),
        readers=PerRound.same(np.array([[-1], [-1], [-1], [0], [2]]), 2),
        rounded=rounded,
    )


@pytest.mark.filterwarnings("ignore:Per-example gradients of this model take the slow path")
def test_rounding_can_remove_noise_that_a_linear_account_relies_on():
    """Every parameter is an attack: agent 2 reads row 4, with noise, and in one data set also a gradient."""
    count, clip = 4000, 0.25 * np.sqrt(4000)
    change = clip / np.sqrt(count)  # of one parameter, caused by one record
    said = float(adaptive(hidden_plan(None), exposure(3, change)).worst()[0])
    assert said == pytest.approx(change / np.hypot(0.25, 0.02), rel=1e-6)
    reached = {}
    for rounded in (None, "bfloat16"):
        seen = []
        for world in (0.0, 1e6):
            held = [
                (torch.full((1, 1), pull), torch.zeros(1, dtype=torch.int64)) for pull in (world, 0.0, 0.0)
            ]
            shards = Shards.from_arrays(held, classes=1)
            gradients = ClippedGradients(Pulled(count), clip, given)
            engine = Engine(
                hidden_plan(rounded),
                gradients,
                shards,
                [Full(1)] * 3,
                seed=int(world),
                key=NoiseKey.of_seed(int(world)),
                intervention=Intervention(every_row=True),
            )
            state = engine.start(gradients.flat.flatten())
            for _ in range(2):
                state = engine.advance(state)
            seen.append(state.rows[3].double().numpy())
        reached[rounded] = abs(seen[1].mean() - seen[0].mean()) / np.sqrt((seen[0].var() + seen[1].var()) / 2)
    assert reached[None] == pytest.approx(said, rel=0.1)
    assert reached["bfloat16"] > 10 * said
    with pytest.raises(NotCovered, match="rounded to bfloat16"):
        adaptive(hidden_plan("bfloat16"), exposure(3, change))


def test_the_outsider_answer_is_refused_if_a_row_is_never_sent():
    sent = np.array([[-1], [-1], [-1], [-1], [2]])
    plan = replace(hidden_plan("bfloat16"), readers=PerRound.same(sent, 2))
    with pytest.raises(NotCovered, match="rounded to bfloat16"):
        outsider(plan, exposure(3, 0.1))
    assert np.isfinite(outsider(hidden_plan("bfloat16"), exposure(3, 0.1)).worst()).all()
