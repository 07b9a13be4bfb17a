"""Tests a share of the schedules of `benchmarks/faults.py`, and that planted faults are found."""

import pytest

from faults.injector import run
from faults.jobs import JOBS
from faults.planted import PLANTED, first_found, swallowed_cancellation

SHARE = 2  # schedules of each setting

SHOWS = {  # seeds that show a planted fault quickly; `--planted` tries others
    "sent-before-it-is-booked": [109],
    "fresh-bytes-on-resend": [102, 100],
    "no-digest-compared": [102, 100],
    "no-acknowledgement": [103, 102],
    "acknowledged-before-it-is-on-disk": [123, 130],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("job", JOBS)
def test_under_any_schedule_nothing_is_undercounted_and_no_agent_waits_for_ever(job):
    for seed in range(SHARE):
        verdict = run(job, seed)
        again = f"python benchmarks/faults.py --setting {job} --seed {seed}"
        assert verdict.faults == [], f"{again}\n" + "\n".join([*verdict.schedule.told(), *verdict.log])


def test_a_seed_determines_all_events():
    first, second = (run("sync-wait", 3) for _ in range(2))
    assert first.log == second.log and len(first.log) > 20
    assert first.log != run("sync-wait", 4).log


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_planted_faults_are_found(fault):
    assert first_found(fault, SHOWS[fault]) is not None


def test_a_task_that_swallows_its_cancellation_does_not_keep_an_agent_from_ending():
    with swallowed_cancellation():
        assert [run("sync-wait", seed).faults for seed in (0, 1)] == [[], []]


@pytest.mark.parametrize(
    ("job", "seed"),
    [
        ("shared-go-on", 144),  # split before all had begun: one half lacks the other's last message
        ("shared-go-on", 1598),
        ("shared-wait", 5692),  # statements that an old copy of a disk lacks, while others arrived meanwhile
        ("shared-wait", 1526),  # started again after a neighbour had finished and left
    ],
)
def test_no_agent_is_left_waiting(job, seed):
    verdict = run(job, seed)
    assert verdict.faults == [] and verdict.left == []


def test_a_row_that_no_ledger_contains_does_not_count_as_a_second_draw():
    """A machine is put back as a whole, and the row that it had sent was lost on the way."""
    assert run("unequal", 1303).faults == []


def test_agents_do_not_wait_for_rows_of_rounds_that_a_neighbour_skipped():
    """The neighbour answers, but continues at a later round: its greeting states which rounds it left out."""
    assert run("async-go-on", 8).faults == []
