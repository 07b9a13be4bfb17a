"""Work divided among threads: after a return, an error or an interrupt, no thread still works on a part."""

import signal
import threading
import time

import pytest
import torch

from topdp.learning.core_threads import run_in_parts


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("ends_by", [ValueError, KeyboardInterrupt])
def test_no_part_still_runs_after_a_failure_or_an_interrupt(two_threads, ends_by):
    """Otherwise a part of an interrupted round could overwrite results of the next attempt."""
    begun, done = threading.Event(), []

    def work(some):
        if some.start == 0 and ends_by is ValueError:
            begun.wait(10)
            raise ValueError
        begun.set()
        time.sleep(0.3)
        done.append(some)

    if ends_by is KeyboardInterrupt:
        main = threading.main_thread().ident
        threading.Thread(target=lambda: begun.wait(10) and signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(ends_by):
        run_in_parts(work, 4)
    expected = [slice(2, 4)] if ends_by is ValueError else [slice(0, 2), slice(2, 4)]
    assert sorted(done, key=lambda some: some.start) == expected
