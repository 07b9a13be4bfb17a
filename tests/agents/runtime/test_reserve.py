"""Tests of the reserve: agents drop out or lie while others rely on their noise, and budgets still hold."""

import numpy as np
import pytest
import torch
from history import CARDS as ALL
from history import Wire, faults, federation, live, on_virtual_time
from symbolic import symbolic

from topdp import topology
from topdp.agents.agreement import federation_manifest as federations
from topdp.agents.agreement.manifest import Rules
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.wire.transport import Message, MessageKind
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.runs import config
from topdp.runs.config import ConfigError
from topdp.runs.run_outline import analysis_of

pytestmark = pytest.mark.usefixtures("quick")
CARDS = ALL[:6]
GRAPH = topology.from_edges([(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (0, 3), (1, 4)], 6)


class Lying(Wire):
    """The rows of `liars` are invalid from `first` on, except those to `only`."""

    def __init__(self, liars, first=5, only=None):
        super().__init__()
        self.liars, self.first, self.only = liars, first, only

    def transport(self, name):
        made = super().transport(name)
        if name in self.liars:
            honest = made.request

            async def request(peer, message):
                if message.kind is MessageKind.ROW and message.round >= self.first and peer != self.only:
                    message = Message.of(MessageKind.ROW, message.round, b"nothing")
                return await honest(peer, message)

            made.request = request
        return made


def ring(folder, departures, rounds=16, **how):
    changes = ("privacy.epsilon=1.0", "method.name=top", "method.alpha=0.125", "method.offline=0.0")
    return federation(
        folder, *changes, graph=GRAPH, rounds=rounds, guarantee="adaptive", departures=departures, **how
    )


def of(run, names):
    return {name: run.outcomes[run.federation.names.index(name)] for name in names}


@pytest.mark.parametrize("departures", [0, 1])
def test_with_a_reserve_one_liar_ends_no_budget(tmp_path, departures):
    made = ring(tmp_path, departures)
    run = on_virtual_time(live(made, wire=Lying({"cleo"})))
    others = of(run, [name for name in made.names if name != "cleo"])
    assert [fault for fault in faults(run) if not fault.startswith("cleo sent")] == []
    passed = [one.result["spent"]["epsilon"] > one.result["budget"] * (1 + 1e-9) for one in others.values()]
    if departures:
        assert {one.code for one in others.values()} == {0} and not any(passed)
        assert {one.result["spent"]["charged_by"] for one in others.values()} == {"adaptive"}
        gone = {name: set(one.result["departures"]) for name, one in others.items()}
        assert gone == {"ada": set(), "bob": {"cleo"}, "dan": {"cleo"}, "eve": set(), "fay": set()}
    else:
        assert {one.code for one in others.values()} == {0, 3} and any(passed)  # the reserve prevents this
    for name in others:
        ledger = Ledger(made.state(made.names.index(name)), writable=False)
        assert verify(ledger) == made.setup.plan.releases
        ledger.close()


@pytest.mark.parametrize("first", [1, 5, 9])
def test_ledgers_bound_the_true_loss_against_a_liar_and_one_more_colluder(tmp_path, first):
    """The oracle uses the sent rows, and reads nothing from accounts."""
    made = symbolic(ring(tmp_path, 1, rounds=10))
    run = made.lived(wire=Lying({"cleo"}, first))
    assert [fault for fault in faults(run) if not fault.startswith("cleo sent")] == []
    made.sent = {key: body for key, body in made.sent.items() if key[0] != "cleo"}  # cleo is a colluder
    exposure = analysis_of(made.setup.manifest.config, made.setup.counts).exposure()
    liar = made.names.index("cleo")
    for owner in set(range(6)) - {liar}:
        books = run.outcomes[owner].result["spent"]["epsilon"]
        for other in set(range(6)) - {liar, owner}:
            mu = made.mu(owner, (liar, other), float(exposure.sensitivity[owner]), estimates=True)
            assert epsilon_of(np.array([mu]), 1e-5)[0] <= books * (1 + 1e-9)


def test_two_liars_exceed_a_reserve_of_one(tmp_path):
    """bob is a neighbour of both, so he charges by worst case and says so; a neighbour of one continues."""
    made = ring(tmp_path, 1)
    run = on_virtual_time(live(made, wire=Lying({"cleo", "ada"})))
    bob, eve = of(run, ["bob", "eve"]).values()
    assert bob.result["departed"] and bob.result["spent"]["charged_by"] == "worst-case" and bob.code == 3
    assert eve.code == 0 and eve.result["spent"]["charged_by"] == "adaptive"


def test_a_departure_counts_once_and_stays_counted_after_a_restart(tmp_path):
    made = ring(tmp_path, 1)
    lying = Lying({"cleo"})
    run = on_virtual_time(live(made, wire=lying, failpoints={1: ["after_ledger:8"]}, restart_after=5.0))
    (bob,) = of(run, ["bob"]).values()
    assert run.starts[1] == 2 and bob.code == 0 and list(bob.result["departures"]) == ["cleo"]


def test_if_all_others_count_as_colluders_any_of_them_may_leave(tmp_path):
    made = ring(tmp_path, 4)
    assert (made.setup.coalition, made.setup.reserve) == (5, 6)
    run = on_virtual_time(live(made, wire=Lying({"cleo", "ada", "dan"})))
    assert {one.code for one in of(run, ["bob", "eve", "fay"]).values()} == {0}


def test_without_departures_the_estimates_agree_with_the_simulator(tmp_path):
    made = ring(tmp_path, 1)
    run = on_virtual_time(live(made))
    assert {one.code for one in run.outcomes.values()} == {0}
    assert all(one.result["departures"] == {} for one in run.outcomes.values())
    torch.testing.assert_close(made.estimates(), made.simulated(), rtol=1e-5, atol=1e-6, check_dtype=False)


def test_the_reserve_is_calibrated_for_and_reported():
    def build(*changes, **rules):
        wanted = config.read(changes=["topology.agents=6", "rounds=10", "method.alpha=0.125", *changes])
        made = federations.build_manifest(CARDS, GRAPH, (100,) * 6, wanted, Rules(**rules))
        return made[0].config.privacy.sigma, made[1], " ".join(made[2])

    none, account, words = build(departures=0)
    assert "There is no reserve" in words and "worst case" in words
    one, reserved, words = build(departures=1)
    ratio = one[0] / none[0]
    assert ratio > 1.05 and f"{ratio:.3g} times as large" in words
    assert reserved.answer("adaptive").epsilon.max() == pytest.approx(
        account.answer("adaptive").epsilon.max()
    )
    assert "adaptive keeps a reserve" in build("privacy.guarantee=view")[2]


def test_the_default_reserve_is_one_where_it_has_an_effect():
    def chosen(*changes, agents=6, **rules):
        wanted = config.read(changes=["topology.agents=6", *changes])
        return federations.default_departures(wanted, agents, Rules(**rules))

    assert chosen() == 1
    assert chosen(agents=100) == 0 and chosen("privacy.allow_slow=true", agents=100) == 1
    assert chosen("privacy.guarantee=worst-case") == chosen("method.name=correlated") == 0
    assert chosen(dead_neighbour="go-on") == 0


def test_a_reserve_without_effect_is_refused(tmp_path):
    from topdp.agents.agreement import identity

    for k in range(2):
        identity.create_identity(tmp_path / str(k), f"agent-{k}", f"127.0.0.1:{7400 + k}")
    cards = [tmp_path / str(k) / identity.CARD_FILE for k in range(2)]
    wanted = config.read(changes=["topology.agents=2", "privacy.guarantee=worst-case"])
    with pytest.raises(ConfigError, match="--departures: expected none, got 1"):
        federations.create_manifest(cards, "100", wanted, "agent-0-agent-1", {"departures": 1})
