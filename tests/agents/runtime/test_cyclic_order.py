"""Which records a round uses: a record keeps its place in the cycle, whatever happens to the agent."""

import shutil
from collections import defaultdict

import numpy as np
import pytest
import torch
from history import Wire, faults, federation, live, on_virtual_time

from builders import blobs_file, cyclic_pairs
from topdp.agents.development import development_hooks, federation_demo
from topdp.agents.ledger.ledger_entries import TamperedError
from topdp.agents.runtime.agent_gradients import AgentGradients
from topdp.errors import DataError, TrustError
from topdp.learning.gradients import ClippedGradients
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.runs import config
from topdp.runs import run as runs
from topdp.runs.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def used(monkeypatch):
    """{agent: {record, as bytes: the rounds of the gradients that it was in}}"""
    found = defaultdict(lambda: defaultdict(list))
    now = []
    mean, clipped_sum = AgentGradients.mean, ClippedGradients.clipped_sum_and_statistics

    def in_round(self, round, estimate):
        now[:] = [self.agent, round]
        return mean(self, round, estimate)

    def spied(self, rows, inputs, labels, weights=None, **how):
        agent, round = now
        for k, record in enumerate(inputs[0]):
            if weights is None or weights[0, k]:
                found[agent][record.numpy().tobytes()].append(round)
        return clipped_sum(self, rows, inputs, labels, weights, **how)

    monkeypatch.setattr(AgentGradients, "mean", in_round)
    monkeypatch.setattr(ClippedGradients, "clipped_sum_and_statistics", spied)
    return found


def booked_and_true(made, used, agent):
    """(ε on the books, ε of the record that was used most), by worst case; the second from what was seen."""
    mine = made.context(agent)
    spent = mine.meter.spending.information
    most = max(sum(spent[r] for r in set(rounds)) for rounds in used[agent].values())
    return made.results()[agent]["spent"]["epsilon"], float(epsilon_of(np.array([most**0.5]), 1e-5)[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "mode"), cyclic_pairs(development_hooks.ROUND_POINTS, ["sync", "async", "async"], 1)
)
def test_a_record_keeps_its_place_in_the_cycle_whatever_kills_the_agent(tmp_path, used, place, mode):
    made = federation(
        tmp_path, "data.batch={cycle=7}", f"method.mode={mode}", "method.offline=0", agents=4, rounds=13
    )
    everybody = range(4)
    run = on_virtual_time(
        live(
            made,
            failpoints={i: f"{place}:{2 + i % 3}" for i in everybody},
            options={i: {"seeded": False} for i in everybody},
        )
    )
    assert faults(run) == [] and len(run.wire.crashed) == 4
    for agent in everybody:
        places = {record: {r % 5 for r in rounds} for record, rounds in used[agent].items()}
        assert len(places) == 30 and all(len(each) == 1 for each in places.values())
        booked, true = booked_and_true(made, used, agent)
        assert booked == pytest.approx(true, rel=1e-9)


def test_an_agent_that_is_killed_in_every_round_uses_no_record_more_often(tmp_path, used):
    """Before and after the books are written, in turn."""
    made = federation(tmp_path, "data.batch={cycle=10}", "method.offline=0", agents=3, rounds=8)
    places = [("before_ledger:1", "after_ledger:1")[r % 2] for r in range(12)]
    run = on_virtual_time(
        live(made, failpoints={0: places}, options={i: {"seeded": False} for i in range(3)})
    )
    assert faults(run) == [] and run.starts[0] == 13
    for agent in range(3):
        assert all(len({r % 3 for r in rounds}) == 1 for rounds in used[agent].values())
        booked, true = booked_and_true(made, used, agent)
        assert booked == pytest.approx(true, rel=1e-9)


def reordered(made, agent):
    """The same records as if they had been exported anew, without an order."""
    count = made.shards.counts[agent]
    turned = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    made.shards.inputs[agent, :count] = made.shards.inputs[agent, :count][turned]
    made.shards.targets[agent, :count] = made.shards.targets[agent, :count][turned]


@pytest.mark.parametrize("batch", ["{cycle=7}", "{poisson=10}", '"full"'])
def test_records_in_another_order_are_refused_where_it_matters(tmp_path, batch):
    made = federation(tmp_path, f"data.batch={batch}", "method.name=plain", agents=3, rounds=2)
    made.agent(0, Wire().transport("ada")).ledger.close()
    reordered(made, 0)  # before the first release
    on_virtual_time(live(made))
    made.agent(0, Wire().transport("ada")).ledger.close()
    reordered(made, 0)
    if "cycle" in batch:
        with pytest.raises(DataError, match="in the order of the first start"):
            made.agent(0, Wire().transport("ada"))
        reordered_back = made.agent(
            1, Wire().transport("bob")
        )  # the lock of a refused one is free, others go on
        reordered_back.ledger.close()
    else:
        made.agent(0, Wire().transport("ada")).ledger.close()


def test_an_order_that_was_lost_is_not_drawn_anew(tmp_path):
    made = federation(tmp_path, "data.batch={cycle=7}", agents=3, rounds=2)
    on_virtual_time(live(made))
    agent = made.agent(0, Wire().transport("ada"))
    agent.ledger.database.connection.execute("DELETE FROM meta WHERE key = 'order'")
    agent.ledger.close()
    for _ in range(2):  # a refusal changes nothing, and leaves the folder free
        with pytest.raises(TamperedError, match="journal: order"):
            made.agent(0, Wire().transport("ada"))


def test_an_old_copy_of_the_folder_has_the_same_order(tmp_path):
    """It may not go on, and is refused; the order follows from the manifest in any case."""
    made = federation(tmp_path / "now", "data.batch={cycle=7}", agents=3, rounds=4)
    made.agent(0, Wire().transport("ada")).ledger.close()
    shutil.copytree(made.state(0), tmp_path / "copy")
    before = [made.context(0, seeded=False).gradients._records_of(r).tolist() for r in range(5)]
    on_virtual_time(live(made))
    shutil.rmtree(made.state(0))
    shutil.copytree(tmp_path / "copy", made.state(0))
    with pytest.raises(TrustError, match="old copy"):
        made.agent(0, Wire().transport("ada"), seeded=False)
    again = made.context(0, seeded=False)
    assert [again.gradients._records_of(r).tolist() for r in range(5)] == before


def test_what_is_written_of_the_records_tells_nothing_without_the_key(tmp_path):
    made = federation(tmp_path, "data.batch={cycle=7}", agents=3, rounds=2)
    gradients = made.context(0).gradients
    assert (
        gradients.order_digest(b"one") == gradients.order_digest(b"one") != gradients.order_digest(b"another")
    )
    assert gradients.order_digest(b"one") != made.context(1).gradients.order_digest(b"one")
    gradients.targets = gradients.targets.clone()
    before = gradients.order_digest(b"one")
    gradients.targets[3] = (gradients.targets[3] + 1) % 3
    assert gradients.order_digest(b"one") != before


def test_samples_are_drawn_anew_by_every_process_and_every_round(tmp_path):
    made = federation(tmp_path, "data.batch={poisson=10}", "method.name=plain", agents=3, rounds=2)
    samples = {
        tuple(made.context(0, seeded=False).gradients._records_of(r).tolist())
        for r in (0, 0, 1)
        for _ in range(3)
    }
    assert len(samples) == 9


def test_an_empty_sample_has_no_gradient(tmp_path, monkeypatch):
    made = federation(tmp_path, "data.batch={poisson=10}", "method.name=plain", agents=3, rounds=2)
    mine = made.context(0, seeded=False)
    monkeypatch.setattr(
        "topdp.agents.runtime.agent_draws.coin_flips", lambda count, rate: np.zeros(count, bool)
    )
    assert torch.equal(mine.gradients.mean(0, mine.start), torch.zeros_like(mine.start))


def test_real_processes_keep_the_simulators_order_through_kills(tmp_path, killed_at):
    """Unseeded, with next to no noise: whoever shuffles anew ends elsewhere than the simulator."""
    wanted = config.read(
        changes=[
            f'data.name="{blobs_file(tmp_path / "blobs.npz", 90)}"',
            "topology.agents=3",
            "topology.kind=ring",
            "rounds=9",
            "privacy.clip=1.0",
            "privacy.guarantee=worst-case",
            "privacy.sigma=1e-6",
            "data.batch={cycle=10}",
        ]
    )
    kills = killed_at(agent0="after_ledger:3", agent1="before_ledger:5")
    found = federation_demo.run(wanted, tmp_path / "demo")
    simulated = runs.run(wanted, tmp_path / "simulator", "cpu").estimates.numpy()
    np.testing.assert_allclose(RunFolder.open(tmp_path / "demo").estimates, simulated, atol=1e-4)
    assert len(kills) == 2 and not found["seeded"] and [each["code"] for each in found["agents"]] == [0, 0, 0]
