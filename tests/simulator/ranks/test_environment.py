"""The environment of ranks: the variables that torchrun sets."""

import pytest

from topdp.errors import InputError
from topdp.simulator.ranks import torchrun_environment
from topdp.simulator.ranks.torchrun_environment import RankError


@pytest.fixture
def told(monkeypatch):
    """`told(rank, size)`: set the variables as torchrun does."""

    def tell(rank, size):
        for name, value in zip(
            torchrun_environment.TORCHRUN_VARIABLES, (rank, size, "localhost", 1), strict=True
        ):
            monkeypatch.setenv(name, str(value))

    return tell


def test_a_single_process_leads_and_can_run_all_commands():
    assert not torchrun_environment.started_together() and torchrun_environment.leads()
    torchrun_environment.expect_one_process("sweep")


def test_one_of_several_ranks_cannot_sweep(told):
    told(1, 2)
    assert torchrun_environment.started_together() and not torchrun_environment.leads()
    with pytest.raises(RankError, match="topdp sweep runs in one process, got 2 ranks"):
        torchrun_environment.expect_one_process("sweep")


@pytest.mark.parametrize("said", ["", "soon", "0", "-1", "nan"])
def test_invalid_timeouts_are_rejected(monkeypatch, said):
    monkeypatch.setenv("TOPDP_RANK_TIMEOUT", said)
    with pytest.raises(InputError, match="TOPDP_RANK_TIMEOUT"):
        torchrun_environment.timeout_of_environment()
