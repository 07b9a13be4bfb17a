"""Tests of kill -9 at any point: same trajectory under a seed, no under-counted ε, and training completes."""

from unittest import mock

import pytest
import torch
from history import Wire, abandon, faults, federation, live, on_virtual_time

from topdp.agents.development import development_hooks
from topdp.agents.ledger.ledger_entries import LedgerError

pytestmark = pytest.mark.usefixtures("quick")


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("place", development_hooks.ROUND_POINTS)
def test_six_agents_killed_at_any_point_end_with_the_estimates_of_the_simulator(tmp_path, mode, place):
    made = federation(tmp_path, f"method.mode={mode}", rounds=5)
    run = on_virtual_time(live(made, failpoints={i: f"{place}:{1 + i % 2}" for i in range(6)}))
    assert len(run.wire.crashed) == 6 and all(run.starts[i] == 2 for i in range(6))
    assert faults(run) == []
    assert {outcome.code for outcome in run.outcomes.values()} == {0}
    torch.testing.assert_close(made.estimates(), made.simulated(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("place", ["in_ledger", "after_ledger", "after_send", "before_receive"])
def test_with_unseeded_noise_no_neighbour_sees_a_second_draw(tmp_path, place):
    made = federation(tmp_path, agents=4, rounds=4)
    run = on_virtual_time(
        live(
            made,
            failpoints=dict.fromkeys(range(4), f"{place}:2"),
            options={i: {"seeded": False} for i in range(4)},
        )
    )
    assert len(run.wire.crashed) == 4
    assert faults(run) == []


def test_the_checker_detects_a_row_that_is_sent_again_with_fresh_noise(tmp_path, monkeypatch):
    """The outbox prevents this: the checker would detect an agent that computes a row again after a crash."""
    from topdp.agents.runtime import outbox_sender
    from topdp.agents.wire import row_payload

    made = federation(tmp_path, agents=3, rounds=4)
    original, sends = outbox_sender.OutboxSender._next, []

    def fresh(self, peer):
        message = original(self, peer)
        if message is None or message.kind is not outbox_sender.MessageKind.ROW:
            return message
        sends.append(message)
        body = row_payload.encode(torch.randn(len(made.context(0).start)).numpy())
        return outbox_sender.Message.of(message.kind, message.round, body)

    monkeypatch.setattr(outbox_sender.OutboxSender, "_next", fresh)
    run = on_virtual_time(live(made, failpoints={0: "after_send:1"}))
    assert sends and any("bodies for round" in fault for fault in faults(run))


@pytest.mark.parametrize("part", ["live_pairing_loop.LivePairingLoop", "agent.RollbackMark"])
def test_a_start_that_fails_releases_the_lock_of_its_folder(tmp_path, monkeypatch, part):
    """This holds for any failure; within one process nothing else would release the lock."""
    made, wire = federation(tmp_path, "method.mode=async", "method.name=plain", agents=3, rounds=4), Wire()
    with monkeypatch.context() as patched, pytest.raises(LedgerError, match="full") as caught:
        patched.setattr(f"topdp.agents.runtime.{part}", mock.Mock(side_effect=LedgerError("full")))
        made.agent(0, wire.transport("ada"), live_pairing=True)
    abandon(made.agent(0, wire.transport("ada"), live_pairing=True))
    assert caught.value.__traceback__  # the traceback keeps the objects of the failed start alive


@pytest.mark.parametrize("choice", ["nowhere:1", "after_ledger", "after_ledger:0", "after_ledger:x"])
def test_invalid_failpoints_are_refused(choice):
    with pytest.raises(ValueError, match="Expected TOPDP_FAILPOINT"):
        development_hooks.Failpoints(choice)
