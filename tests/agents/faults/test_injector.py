"""A share of the schedules of `benchmarks/faults.py`, and faults planted on purpose, which must be found."""

import pytest

from faults.injector import run
from faults.jobs import JOBS
from faults.planted import PLANTED, first_found, swallowed_cancellation

SHARE = 2  # schedules of each setting


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


@pytest.mark.parametrize("fault", PLANTED)
def test_a_fault_that_is_planted_is_found(fault):
    assert first_found(fault, range(100, 140)) is not None


def test_a_task_that_does_not_let_itself_be_cancelled_keeps_no_agent_from_ending():
    with swallowed_cancellation():
        assert [run("sync-wait", seed).faults for seed in (0, 1)] == [[], []]


def test_rows_of_rounds_that_a_neighbour_has_skipped_are_not_waited_for():
    """It is alive and answers, but took up a later round: in its greeting it says what it has left out."""
    assert run("async-go-on", 8).faults == []
