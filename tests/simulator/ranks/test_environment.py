import pytest

from topdp.errors import InputError
from topdp.simulator.ranks import environment
from topdp.simulator.ranks.environment import RankError


@pytest.fixture
def told(monkeypatch):
    """`told(rank, size)`: as torchrun tells a process."""

    def tell(rank, size):
        for name, value in zip(environment.STARTED_BY, (rank, size, "localhost", 1), strict=True):
            monkeypatch.setenv(name, str(value))

    return tell


def test_a_process_alone_leads_and_may_do_everything():
    assert not environment.started_together() and environment.leads()
    environment.expect_one_process("sweep")


def test_one_of_several_does_not_sweep(told):
    told(1, 2)
    assert environment.started_together() and not environment.leads()
    with pytest.raises(RankError, match="topdp sweep is for one process, got 2 ranks"):
        environment.expect_one_process("sweep")


@pytest.mark.parametrize("said", ["", "soon", "0", "-1", "nan"])
def test_patience_is_a_number_of_seconds(monkeypatch, said):
    monkeypatch.setenv("TOPDP_RANK_TIMEOUT", said)
    with pytest.raises(InputError, match="TOPDP_RANK_TIMEOUT"):
        environment.patience_of_environment()
