"""The contract that the plans of every protocol meet on every graph."""

from dataclasses import replace
from inspect import isabstract

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import (
    AVERAGING,
    GRAPHS,
    PROTOCOLS,
    RULES,
    SETTINGS,
    batches_of,
    blobs,
    constant_schedule,
    linear_model,
)
from topdp import topology
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.plan import prune
from topdp.plan.noise_key import NoiseKey
from topdp.privacy import exposure, worst_case
from topdp.protocols import Central, Protocol, protocol_of
from topdp.simulator.engine import Engine
from topdp.topology import Topology

ROUNDS = 40
PAIRED = ("correlated",)
NOT_RANDOM = ("dsgd", "muffliato", "alone")
UNMIXED = ("alone",)


def write(name, graph, alpha=0.25, deviation=None, seed=0, rounds=ROUNDS):
    deviation = np.ones(graph.agents) if deviation is None else deviation
    return PROTOCOLS[name](alpha).plan(graph, constant_schedule(rounds, rate=1.0), deviation, seed)


every_protocol = pytest.mark.parametrize("name", PROTOCOLS)
every_graph = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS.keys())


def test_the_contract_covers_every_protocol():
    """Every concrete subclass of Protocol is in PROTOCOLS, except Central."""
    written, found = [Protocol], set()
    for kind in written:
        written += kind.__subclasses__()
        if kind.__module__.startswith("topdp.") and not isabstract(kind):
            found.add(kind)
    assert found == {type(make(0.5)) for make in PROTOCOLS.values()} | {Central}
    assert PROTOCOLS.keys() == SETTINGS.keys()


@every_protocol
def test_a_plan_names_the_protocol_that_wrote_it(name):
    plan = write(name, topology.ring(3))
    assert protocol_of(plan) is type(PROTOCOLS[name](0.5))
    assert protocol_of(replace(plan, protocol=f"{name} momentum")) is Protocol


@every_protocol
@every_graph
def test_the_weights_of_each_row_sum_to_one(name, graph):
    for this in write(name, graph):
        weights = np.where(this.source >= 0, this.weight, 0.0)
        np.testing.assert_allclose(weights.sum(axis=1)[this.exists], 1.0, atol=1e-12)
        assert (weights >= 0).all() or name in AVERAGING


@every_protocol
@every_graph
def test_rows_mix_only_what_their_owner_made_or_received(name, graph):
    plan = write(name, graph)
    for r in range(1, plan.releases):
        before, this = plan[r - 1], plan[r]
        for row in np.flatnonzero(this.exists):
            me = plan.owner[row]
            for source in this.source[row][this.source[row] >= 0]:
                assert before.exists[source]
                assert plan.owner[source] == me or me in before.readers[source]


@pytest.mark.parametrize("name", UNMIXED)
@every_graph
def test_agents_that_train_alone_use_only_rows_of_their_own(name, graph):
    plan = write(name, graph)
    for this in plan:
        assert this.source.tolist() == [[agent] for agent in range(graph.agents)]


@every_protocol
@every_graph
def test_only_neighbours_read_rows(name, graph):
    plan = write(name, graph)
    for this in plan:
        for row, readers in enumerate(this.readers):
            for j in readers[readers >= 0]:
                assert graph.adjacency[plan.owner[row], j]


@every_protocol
@every_graph
def test_a_draw_is_known_exactly_to_the_agents_whose_rows_use_it(name, graph):
    plan = write(name, graph)
    makers = {draw: set() for draw in range(plan.draws)}
    for this in plan:
        for row, draw in zip(*np.nonzero(this.draw >= 0), strict=True):
            makers[int(this.draw[row, draw])].add(int(plan.owner[row]))
    for draw, known_by in enumerate(plan.known_by):
        assert makers[draw] == set(known_by[known_by >= 0].tolist())
        assert len(makers[draw]) == 1 or (name in PAIRED and len(makers[draw]) == 2)


@every_protocol
def test_the_seed_determines_the_plan(name):
    graph = GRAPHS["random"]
    assert write(name, graph, seed=1).digest() == write(name, graph, seed=1).digest()
    another = write(name, graph, seed=2).digest() != write(name, graph, seed=1).digest()
    assert another == (name not in NOT_RANDOM)


@every_protocol
def test_a_longer_plan_begins_with_the_same_sources_as_a_shorter_one(name):
    graph = GRAPHS["random"]
    short, long = write(name, graph, rounds=10), write(name, graph, rounds=30)
    for r in range(11):
        np.testing.assert_array_equal(short[r].source, long[r].source)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_outside_its_range_is_rejected(name, alpha):
    with pytest.raises(ValueError, match="alpha"):
        PROTOCOLS[name](alpha)


@every_protocol
@pytest.mark.parametrize("deviation", [[1.0], [1.0, -1.0], [1.0, float("nan")]])
def test_invalid_deviations_are_rejected(name, deviation):
    with pytest.raises(ValueError, match="deviation"):
        write(name, GRAPHS["pair"], deviation=np.array(deviation))


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name not in UNMIXED])
@every_graph
def test_mixing_alone_brings_agents_to_consensus(name, graph):
    """The rows start at different values."""
    plan = write(name, graph, alpha=0.5, rounds=400)
    rows = np.random.default_rng(0).normal(size=plan.rows)
    rows = rows[plan.owner]
    spread = np.ptp(rows[: graph.agents])
    for r in range(1, plan.releases):
        this = plan[r]
        rows = np.where(this.source >= 0, rows[this.source] * this.weight, 0.0).sum(axis=1)
    assert np.ptp(rows[: graph.agents]) < 1e-3 * spread


@every_protocol
def test_training_without_noise_on_equal_data_gives_every_agent_the_same_model(name):
    graph = topology.ring(5)
    one = blobs(1)
    shards = type(one).from_arrays(
        [(one.inputs[0], one.targets[0])] * 5, test=(one.test_inputs, one.test_targets), classes=3
    )
    plan = write(name, graph, deviation=np.zeros(5))
    engine = Engine(
        plan,
        ClippedGradients(linear_model(), 1.0),
        shards,
        batches_of(shards),
        seed=0,
        key=NoiseKey.of_seed(0),
    )
    state = engine.start(ClippedGradients(linear_model(), 1.0).flat.flatten())
    while state.releases < plan.releases:
        state = engine.advance(state)
    estimates = engine.estimates(state)
    if "async" in name:  # agents that were offline lag behind
        assert engine.evaluate(state).accuracy.min() > 0.9
    else:
        torch.testing.assert_close(estimates, estimates[:1].expand_as(estimates), rtol=1e-4, atol=1e-5)


@every_protocol
def test_pruned_and_unpruned_plans_give_the_same_estimates(name, monkeypatch):
    graph = GRAPHS["random"]
    plan = write(name, graph, rounds=12)
    shards = blobs(graph.agents)
    found = []
    for shorter in (True, False):
        if not shorter:
            monkeypatch.setattr("topdp.simulator.engine.prune", lambda plan: plan)
        gradients = ClippedGradients(linear_model(), 1.0)
        engine = Engine(plan, gradients, shards, batches_of(shards), seed=4, key=NoiseKey.of_seed(4))
        assert (engine.plan.exists.sum() < plan.exists.sum()) == (shorter and name == "top-sync")
        state = engine.start(gradients.flat.flatten())
        while state.releases < plan.releases:
            state = engine.advance(state)
        found.append(engine.estimates(state).clone())
    assert torch.equal(found[0], found[1])


@settings(max_examples=30)
@given(st.integers(3, 14), st.integers(0, 10**6), st.floats(0.02, 1.0))
def test_covered_messages_mix_a_covering_neighbour_and_add_reduced_noise(agents, seed, alpha):
    """Algorithm 1: k ∈ N_i^j, and σ√(2α-α²) when budgets are equal."""
    graph = topology.random(agents, 0.6, seed)
    plan = write("top-sync", graph, alpha=alpha, seed=seed, rounds=6)
    for r in range(1, plan.releases):
        this, before = plan[r], plan[r - 1]
        for row in range(agents, plan.rows):
            i, (j,) = plan.owner[row], this.readers[row][this.readers[row] >= 0]
            source = this.source[row][1]
            k = plan.owner[source]
            assert int(k) in graph.cover_set(int(i), int(j))
            assert j not in before.readers[source]  # j never saw the row whose noise is reused
            assert this.std[row, 0] == pytest.approx(np.sqrt(2 * alpha - alpha**2))
        uncovered = [(i, j) for i, j in graph.directed if not graph.cover_set(int(i), int(j))]
        assert plan.rows - agents == len(graph.directed) - len(uncovered)
        for i, j in uncovered:
            assert j in this.readers[i] and this.std[i, 0] == 1.0


REUSING = ("top-sync", "top-async")


@settings(max_examples=30)
@given(st.integers(3, 10), st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 1.0]))
def test_with_unequal_budgets_noise_is_reduced_by_the_noise_of_the_source(agents, seed, own_share):
    """It is never below the share of own noise that equal noise would leave."""
    graph = topology.random(agents, 0.6, seed)
    deviation = np.random.default_rng(seed).uniform(0, 2, agents)
    alpha = 0.3
    for name in REUSING:
        protocol = PROTOCOLS[name](alpha, own_share=own_share)
        plan = protocol.plan(graph, constant_schedule(5, rate=1.0), deviation, seed)
        for r in range(1, plan.releases):
            this = plan[r]
            reduces = np.arange(plan.rows) >= agents if name == "top-sync" else this.source[:, 1] >= 0
            for row in np.flatnonzero(reduces):
                i, k = plan.owner[row], plan.owner[this.source[row, 1]]
                rest = deviation[i] ** 2 - (1 - alpha) ** 2 * deviation[k] ** 2
                least = own_share**2 * (1 - (1 - alpha) ** 2) * deviation[i] ** 2
                assert this.std[row, 0] == pytest.approx(np.sqrt(max(rest, least)))


@settings(max_examples=30)
@given(
    agents=st.integers(3, 10),
    seed=st.integers(0, 10**6),
    alpha=st.floats(0.01, 1.0),
    own_share=st.floats(0.01, 1.0),
)
def test_every_row_with_a_gradient_has_own_noise(agents, seed, alpha, own_share):
    """However unequal the noise is: so the worst case is finite whenever alpha > 0."""
    graph = topology.random(agents, 0.6, seed)
    deviation = np.exp(np.random.default_rng(seed).normal(0, 3, agents))
    for name in REUSING:
        protocol = PROTOCOLS[name](alpha, own_share=own_share)
        plan = protocol.plan(graph, constant_schedule(5, rate=1.0), deviation, seed)
        for this in plan:
            assert (this.std[this.exists & (this.step != 0)] > 0).all()
        assert np.isfinite(worst_case(plan, exposure(agents, sensitivity=1.0)).mu).all()


@pytest.mark.parametrize("name", REUSING)
@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.25, 1.0])
def test_with_equal_noise_the_own_share_does_not_change_the_plan(name, alpha):
    plans = [
        PROTOCOLS[name](alpha, own_share=own_share).plan(
            GRAPHS["random"], constant_schedule(20), np.full(12, 0.37), 3
        )
        for own_share in (0.0, 0.5, 1.0)  # 0 is Eq. 5b as printed
    ]
    assert len({plan.digest() for plan in plans}) == 1


@pytest.mark.parametrize("name", REUSING)
@pytest.mark.parametrize("own_share", [-0.1, 1.1, float("nan")])
def test_an_own_share_outside_its_range_is_rejected(name, own_share):
    with pytest.raises(InputError, match="Expected 0 <= own_share <= 1, got"):
        PROTOCOLS[name](0.25, own_share=own_share)


@pytest.mark.parametrize("name", ["plain-async", "top-async"])
@every_graph
def test_exchanges_are_a_matching_without_repeated_partners(name, graph):
    plan = write(name, graph)
    previous = np.full(graph.agents, -1)
    for r in range(1, plan.releases):
        partner = plan[r].source[:, 1]
        paired = np.flatnonzero(partner >= 0)
        assert (partner[partner[paired]] == paired).all()
        assert graph.adjacency[paired, partner[paired]].all()
        assert not ((partner == previous) & (partner >= 0)).any()
        # the row that was mixed is the one that the partner sent in the previous round
        assert (plan[r - 1].readers[paired, 0] == partner[paired]).all()
        previous = partner


@pytest.mark.parametrize("name", ["plain-async", "top-async"])
@pytest.mark.parametrize("offline", [0.0, 0.1, 0.5])
def test_offline_agents_neither_exchange_nor_add_noise(name, offline):
    graph = topology.random(20, 0.3, 0)
    plan = PROTOCOLS[name](0.25, offline).plan(graph, constant_schedule(200), np.ones(20), 0)
    absences = np.zeros(20)
    for r in range(1, plan.releases):
        this = plan[r]
        absent = this.step == 0
        assert absent.sum() == round(offline * 20)
        assert (this.source[absent, 1] == -1).all() and (this.std[absent] == 0).all()
        absences += absent
    assert absences.min() > 0 or offline == 0  # offline agents are drawn again in each round


@pytest.mark.parametrize("offline", [-0.1, 1.0, 1.5])
def test_an_invalid_offline_share_is_rejected(offline):
    with pytest.raises(ValueError, match="offline"):
        PROTOCOLS["top-async"](0.25, offline).plan(GRAPHS["ring"], constant_schedule(3), np.ones(7), 0)


def test_the_matching_of_exchanges_is_maximal():
    """Of two neighbours without a partner, the row of one must contain that of the other."""
    graph = topology.random(15, 0.4, 3)
    plan = write("plain-async", graph)
    mixed_in = np.full(15, -1)
    for r in range(1, plan.releases):
        partner, online = plan[r].source[:, 1], plan[r].step != 0
        alone = np.flatnonzero((partner < 0) & online)
        for i in alone:
            for j in alone:
                assert not graph.adjacency[i, j] or mixed_in[i] == j or mixed_in[j] == i
        mixed_in = np.where(online, partner, mixed_in)


def test_partners_are_uniform_over_neighbours():
    graph = Topology("star", topology.star(5, hubs=1).adjacency)
    plan = write("plain-sync", graph, rounds=4000)
    hub = int(graph.degrees.argmax())
    partners = np.array([plan[r].source[hub, 1] for r in range(1, plan.releases)])
    counts = np.bincount(partners, minlength=5)[graph.adjacency[hub]]
    assert abs(counts - 1000).max() < 5 * np.sqrt(1000 * 0.75)


def test_round_zero_sends_the_estimate_to_all_neighbours():
    for name in ("plain-sync", "top-sync"):
        graph = GRAPHS["random"]
        first = write(name, graph)[0]
        assert first.exists.sum() == graph.agents
        for i in range(graph.agents):
            assert set(first.readers[i][first.readers[i] >= 0]) == set(np.flatnonzero(graph.adjacency[i]))


def test_pruning_never_makes_a_plan_longer():
    for name in PROTOCOLS:
        plan = write(name, GRAPHS["tree"])
        assert prune(plan).exists.sum() <= plan.exists.sum()
