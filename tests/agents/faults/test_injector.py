"""A share of the schedules of `benchmarks/faults.py`, and faults planted on purpose, which must be found."""

import pytest

from faults.injector import run
from faults.jobs import JOBS
from faults.planted import PLANTED, first_found, swallowed_cancellation

SHARE = 2  # schedules of each setting

SHOWS = {  # seeds that are quick to show a planted fault; `--planted` goes through others
    "sent-before-it-is-booked": [109],
    "fresh-bytes-on-resend": [100, 101],
    "no-digest-compared": [100, 101],
    "no-acknowledgement": [103, 102],
    "acknowledged-before-it-is-on-disk": [123, 130],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("job", JOBS)
def test_whatever_happens_nothing_is_undercounted_and_nobody_waits_for_ever(job):
    for seed in range(SHARE):
        verdict = run(job, seed)
        again = f"python benchmarks/faults.py --setting {job} --seed {seed}"
        assert verdict.faults == [], f"{again}\n" + "\n".join([*verdict.schedule.told(), *verdict.log])


def test_a_seed_says_all_that_happens():
    first, second = (run("sync-wait", 3) for _ in range(2))
    assert first.log == second.log and len(first.log) > 20
    assert first.log != run("sync-wait", 4).log


@pytest.mark.slow
@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_that_is_planted_is_found(fault):
    assert first_found(fault, SHOWS[fault]) is not None


def test_a_task_that_does_not_let_itself_be_cancelled_keeps_no_agent_from_ending():
    with swallowed_cancellation():
        assert [run("sync-wait", seed).faults for seed in (0, 1)] == [[], []]


@pytest.mark.parametrize(
    ("job", "seed"),
    [
        ("shared-go-on", 144),  # cut in two before all had begun: one half lacks the other's last word
        ("shared-go-on", 1598),
        ("shared-wait", 5692),  # statements that a disk put back has lost, while others came meanwhile
        ("shared-wait", 1526),  # started again when a neighbour had finished and left
    ],
)
def test_nobody_is_left_waiting(job, seed):
    verdict = run(job, seed)
    assert verdict.faults == [] and verdict.left == []


def test_what_nobody_has_on_its_books_is_no_second_draw():
    """A machine put back as a whole; the row that it had sent was lost on the way."""
    assert run("unequal", 1303).faults == []


def test_rows_of_rounds_that_a_neighbour_has_skipped_are_not_waited_for():
    """It is alive and answers, but took up a later round: in its greeting it says what it has left out."""
    assert run("async-go-on", 8).faults == []
