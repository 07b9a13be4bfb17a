"""Names become objects: batches, the same for the accountants, the engine and the agents."""

import pytest

from topdp.errors import InputError
from topdp.plan import Cycle, Full, Poisson
from topdp.settings import build
from topdp.settings.config import read


@pytest.mark.parametrize(
    "batch, expected",
    [
        ('"full"', (Full(9), Full(5))),
        ("{cycle=4}", (Cycle(9, 4), Cycle(5, 4))),
        ("{poisson=4}", (Poisson(9, 4), Poisson(5, 4))),
    ],
)
def test_one_tuple_of_batches_for_everybody(batch, expected):
    config = read(changes=[f"data.batch={batch}"])
    assert build.batches(config, (9, 5)) == expected
    assert build.analysis(config, (9, 5)).batches == expected


@pytest.mark.parametrize("batch", ["{cycle=6}", "{poisson=6}"])
def test_batches_larger_than_the_smallest_shard_are_refused(batch):
    config = read(changes=[f"data.batch={batch}"])
    with pytest.raises(InputError, match=r"at most 5 records, all that agent 1 holds, got 6\. Use smaller"):
        build.batches(config, (9, 5, 7))
