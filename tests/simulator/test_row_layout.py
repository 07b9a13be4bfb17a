"""Row layouts: agents divided among several engines in one process make the rows of a whole run."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from builders import PROTOCOLS, batches_of, blobs, constant_schedule, linear_model
from topdp import topology
from topdp.data import Shards, batch_selection
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients, DivergedError
from topdp.plan import Optimiser, Robust, optimised, prune
from topdp.plan.noise_key import NoiseKey
from topdp.simulator import engine as engines
from topdp.simulator.engine import Engine
from topdp.simulator.row_layout import RowLayout

AGENTS = 8
HOMES = {
    "two": [0, 0, 0, 0, 1, 1, 1, 1],
    "three, mixed up": [2, 0, 1, 1, 0, 2, 1, 0],
    "one alone": [1, 1, 1, 0, 1, 1, 1, 1],
}


def plan_of(name, optimiser=None, robust=None, rounds=6):
    graph, schedule = topology.random(AGENTS, 0.4, 0), constant_schedule(rounds, rate=0.5)
    plan = PROTOCOLS[name](0.25).plan(graph, schedule, np.full(AGENTS, 0.3), 3)
    if optimiser is not None:
        plan = optimised(plan, optimiser, schedule.rate)
    return prune(plan if robust is None else replace(plan, robust=robust))


def held(shards, agents):
    chosen = torch.from_numpy(agents)
    return Shards(
        inputs=shards.inputs[chosen],
        targets=shards.targets[chosen],
        counts=tuple(shards.counts[agent] for agent in agents),
        classes=shards.classes,
        test_inputs=shards.test_inputs,
        test_targets=shards.test_targets,
    )


class Parts:
    """The engines of all parts; `fetch` copies the rows that one part needs from the other parts."""

    def __init__(self, plan, home, batches="full"):
        gradients, shards = ClippedGradients(linear_model(), 1.0), blobs(AGENTS)
        every = batches_of(shards, batches)
        self.engines = []
        for here in range(max(home) + 1):
            layout = RowLayout(plan, np.array(home), here)

            self.engines.append(
                Engine(
                    plan,
                    gradients,
                    held(shards, layout.agents),
                    [every[agent] for agent in layout.agents],
                    seed=5,
                    key=NoiseKey.of_seed(5),
                    select=partial(
                        batch_selection.select_for_agents,
                        layout.agents.tolist(),
                        every,
                        5,
                        key=NoiseKey.of_seed(5),
                    ),
                    layout=layout,
                    fetch=self.fetch(layout),
                )
            )
        self.states = [engine.start(gradients.flat.flatten()) for engine in self.engines]

    def fetch(self, layout):
        def begin(round, rows):
            def arrive():
                first = len(layout.made(round - 1))
                for origin, coming in layout.arriving(round):
                    made = self.engines[origin].layout.made(round - 1)
                    values = self.before[origin].rows[np.searchsorted(made, coming)]
                    rows[first : first + len(coming)] = values
                    first += len(coming)

            return arrive

        return begin

    def advance(self):
        self.before = list(self.states)
        self.states = [engine.advance(state) for engine, state in zip(self.engines, self.states, strict=True)]

    def gathered(self, get):
        """[agents, ...]: the results of `get(engine, state)` for the agents of each part."""
        home = self.engines[0].layout.home
        parts = [get(engine, state) for engine, state in zip(self.engines, self.states, strict=True)]
        found = torch.empty(AGENTS, *parts[0].shape[1:], dtype=parts[0].dtype)
        for here, part in enumerate(parts):
            found[torch.from_numpy(home == here)] = part
        return found


def whole_run(plan, batches="full"):
    gradients, shards = ClippedGradients(linear_model(), 1.0), blobs(AGENTS)
    engine = Engine(plan, gradients, shards, batches_of(shards, batches), seed=5, key=NoiseKey.of_seed(5))
    state = engine.start(gradients.flat.flatten())
    while state.releases < plan.releases:
        state = engine.advance(state)
    return engine, state


def expect_equal(plan, home, batches="full"):
    engine, state = whole_run(plan, batches)
    parts = Parts(plan, home, batches)
    for _ in range(plan.releases):
        parts.advance()
    assert torch.equal(parts.gathered(Engine.reported), engine.reported(state))
    loss = parts.gathered(lambda one, at: torch.from_numpy(one.evaluate(at).loss))
    assert torch.equal(loss, torch.from_numpy(engine.evaluate(state).loss))


@pytest.mark.slow
@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_parts_end_with_the_rows_of_the_whole_run(name, home):
    expect_equal(plan_of(name), HOMES[home])


@pytest.mark.parametrize("batches", ["cycle", "poisson"])
def test_parts_select_the_same_records_as_the_whole_run(batches):
    expect_equal(plan_of("top-sync"), HOMES["three, mixed up"], batches)


@pytest.mark.parametrize(
    "name, optimiser",
    [
        ("top-sync", Optimiser("momentum")),
        ("dsgd", Optimiser("nesterov", average=0.5)),
        ("muffliato", Optimiser("adam")),
    ],
)
def test_optimisers_with_memories_work_in_parts(name, optimiser):
    expect_equal(plan_of(name, optimiser), HOMES["three, mixed up"])


@pytest.mark.parametrize("rule", ["clipped", "trimmed", "nearest"])
def test_robust_rules_work_in_parts(rule):
    expect_equal(plan_of("dsgd", robust=Robust(rule)), HOMES["three, mixed up"])


@pytest.mark.parametrize("name", PROTOCOLS)
def test_rounded_rows_in_parts_equal_those_of_the_whole_run(name):
    expect_equal(replace(plan_of(name), rounded="bfloat16"), HOMES["three, mixed up"])


@pytest.mark.parametrize("name", ["top-sync", "correlated", "muffliato"])
def test_computing_gradients_in_several_passes_changes_nothing(monkeypatch, name):
    plan = plan_of(name)
    engine, state = whole_run(plan)
    monkeypatch.setattr(engines, "MAX_GRADIENT_NUMBERS", 3 * engine.gradients.flat.dimension)
    some, ends = whole_run(plan)
    assert len(some._passes()) == 3
    assert torch.equal(some.estimates(ends), engine.estimates(state))
    expect_equal(plan, HOMES["one alone"])  # seven agents in one part: passes of 3, 3 and 1


def test_parts_resume_from_their_own_rows():
    plan, home = plan_of("top-sync"), HOMES["three, mixed up"]
    engine, state = whole_run(plan)
    parts = Parts(plan, home)
    for _ in range(3):
        parts.advance()
    kept = [part.rows.clone() for part in parts.states]
    again = Parts(plan, home)
    again.states = [one.resume(3, rows) for one, rows in zip(again.engines, kept, strict=True)]
    for _ in range(plan.releases - 3):
        again.advance()
    assert torch.equal(again.gathered(Engine.estimates), engine.estimates(state))


def test_a_diverged_agent_is_reported_by_its_number_in_the_plan():
    plan = plan_of("dsgd")
    parts = Parts(plan, HOMES["three, mixed up"])
    parts.states[1].rows[1] = np.inf  # the part has agents 2, 3 and 6
    with pytest.raises(DivergedError, match=r"agents \[3\]"):
        parts.advance()


def test_a_layout_of_an_unpruned_plan_is_rejected():
    plan = plan_of("dsgd")
    shards = blobs(AGENTS)
    layout = RowLayout(plan_of("dsgd"), np.zeros(AGENTS, int))
    with pytest.raises(InputError, match="layout of the pruned plan"):
        Engine(
            plan,
            ClippedGradients(linear_model(), 1.0),
            shards,
            batches_of(shards, "full"),
            seed=0,
            key=NoiseKey.of_seed(0),
            layout=layout,
        )


def test_only_rows_that_another_part_mixes_are_sent():
    """For a ring in two parts, those of its four agents at the cuts; and none within a part."""
    graph, schedule = topology.ring(8), constant_schedule(2)
    plan = prune(PROTOCOLS["dsgd"](0.25).plan(graph, schedule, np.ones(8), 0))
    layout = RowLayout(plan, np.array(HOMES["two"]), 1)
    assert {way: rows.tolist() for way, rows in layout.guests(2).items()} == {(0, 1): [0, 3], (1, 0): [4, 7]}
    assert layout.needs_guests(2)[layout.made(2)].tolist() == [True, False, False, True]
