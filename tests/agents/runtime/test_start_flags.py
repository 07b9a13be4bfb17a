"""What a start was told stays on the books: restarts can be stricter, and hide nothing."""

import json

import pytest
from history import faults, federation, live, on_virtual_time

from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_check import verify
from topdp.agents.ledger.ledger_entries import LedgerError, ReleaseCost
from topdp.agents.runtime.agent import RESULT_FILE
from topdp.runs.config import ConfigError

pytestmark = pytest.mark.usefixtures("quick")


class Starts(dict):
    """Options of agent 0, one start after the other; the others are always seeded."""

    def __init__(self, *each):
        super().__init__({0: {}})
        self.each = iter(each)

    def get(self, number, default=None):
        return next(self.each) if number == 0 else {}


def restarted(tmp_path, *starts):
    made = federation(tmp_path, "privacy.epsilon=9.0", agents=3, rounds=6)
    try:
        return made, on_virtual_time(live(made, failpoints={0: "after_ledger:3"}, options=Starts(*starts)))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None


def test_seeded_noise_is_said_for_ever(tmp_path):
    made, run = restarted(tmp_path, {"seeded": True}, {"seeded": False})
    assert faults(run) == [] and run.starts[0] == 2
    result = run.outcomes[0].result
    assert result["seeded"] and "Seeded noise" in result["warning"] and not result["rehearsal"]
    assert json.loads((made.state(0) / RESULT_FILE).read_text())["seeded"]


def test_books_of_real_noise_are_not_gone_on_with_seeded(tmp_path):
    with pytest.raises(LedgerError, match="--seeded: expected no such option"):
        restarted(tmp_path, {"seeded": False}, {"seeded": True})


def test_a_budget_of_its_own_outlives_a_restart_and_only_shrinks(tmp_path):
    _, run = restarted(tmp_path / "kept", {"epsilon": 4.0}, {})
    result = run.outcomes[0].result
    assert result["budget"] == 4.0 and result["spent"]["epsilon"] <= 4.0 * (1 + 1e-9)
    _, run = restarted(tmp_path / "smaller", {"epsilon": 4.0}, {"epsilon": 3.0})
    assert run.outcomes[0].result["budget"] == 3.0
    with pytest.raises(LedgerError, match=r"--epsilon: expected at most 4, .* got 5"):
        restarted(tmp_path / "larger", {"epsilon": 4.0}, {"epsilon": 5.0})


def test_more_than_the_manifest_grants_is_refused(tmp_path):
    made = federation(tmp_path, "privacy.epsilon=9.0", agents=3, rounds=6)
    with pytest.raises(
        ConfigError, match=r"expected at most 9, the budget that the manifest grants .* got 99"
    ):
        made.context(0, epsilon=99.0)


@pytest.mark.parametrize("key", start_choices.TEST_OPTIONS)
def test_a_choice_before_the_first_release_is_kept_and_one_after_it_refused(tmp_path, key):
    ledger = Ledger(tmp_path, "federation", "ada")
    flags = {"seeded": key == "seeded", "rehearsal": key == "rehearsal"}
    plain = {"seeded": False, "rehearsal": False}
    assert start_choices.record_choices(
        ledger, **flags, requested=None, granted=2.0
    ) == 2.0 and start_choices.ever_chosen(ledger, key)
    ledger.close()
    ledger = Ledger(tmp_path, "federation", "ada")
    start_choices.record_choices(ledger, **plain, requested=None, granted=2.0)
    ledger.release(0, ReleaseCost(0.1), {}, b"state")
    start_choices.record_choices(
        ledger, **flags, requested=None, granted=2.0
    )  # was so before: may be so again
    assert start_choices.ever_chosen(ledger, key) and verify(ledger) == 1
    ledger.close()
    other = Ledger(tmp_path / "other", "federation", "ada")
    start_choices.record_choices(other, **plain, requested=1.0, granted=2.0)
    other.release(0, ReleaseCost(0.1), {}, b"state")
    with pytest.raises(LedgerError, match=f"{start_choices.TEST_OPTIONS[key]}: expected no such option"):
        start_choices.record_choices(other, **flags, requested=None, granted=2.0)
    assert start_choices.recorded_budget(other) == 1.0 and not start_choices.ever_chosen(other, key)
    other.close()
