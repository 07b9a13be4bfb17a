"""The random numbers that a model draws: one stream for each block of examples, and for each single example.

A stream follows from a base and the fixed position of its block or example. So neither the content of a
record, nor how many numbers a model draws for it, changes the random numbers of another record. Noise does
not come from these streams: models draw from torch's global generators, and user code can read them.
"""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

import numpy as np
import torch

from topdp.errors import InputError

SEEDING_REFUSED = (
    "Expected a model and a loss that leave the seeds of random generators alone, got code that sets a seed "
    "of torch. Then a record could change the random numbers of others. Remove torch.manual_seed and the "
    "like: topdp seeds every example by its position."
)


@final
class RecordStreams:
    """The streams of one pass over the examples of all agents. Code that draws nothing needs no `base`."""

    def __init__(self, base: int | None, device: torch.device) -> None:
        self._base, self._generators = base, [torch.default_generator]
        if base is not None and device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            number = torch.cuda.current_device() if device.index is None else device.index
            self._generators.append(torch.cuda.default_generators[number])
        self._seed: int | None = None

    def begin(self, *position: int) -> None:
        """Let torch's global generators draw the stream of the block or example at this position."""
        if self._base is None:
            return
        name = struct.pack(f"<{1 + len(position)}q", self._base, *position)
        self._seed = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1
        for generator in self._generators:
            generator.manual_seed(self._seed)

    def expect_unseeded(self) -> None:
        """Raise InputError if code has set the seed of a generator since `begin`."""
        if self._seed is None:
            return
        if any(generator.initial_seed() != self._seed for generator in self._generators):
            raise InputError(SEEDING_REFUSED)


@contextmanager
def record_streams(draws: bool, device: torch.device) -> Iterator[RecordStreams]:
    """Yield the streams of one pass. `draws`: whether the model may draw random numbers.

    The base is one number of torch's global generator, which is otherwise as before at the end.
    """
    if not draws:
        yield RecordStreams(None, device)
        return
    base = int(torch.randint(2**62, ()))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield RecordStreams(base, device)


@contextmanager
def seeded_streams(seed: int) -> Iterator[None]:
    """Let the bases of `record_streams` follow from `seed` inside the `with` block."""
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        yield


def generator_states() -> list[tuple[str, object]]:
    """Return the states of the global generators of Python and NumPy, which models must not use."""
    state = np.random.get_state(legacy=False)
    parts = state["state"]["key"].tobytes(), state["state"]["pos"], state["has_gauss"], state["gauss"]
    return [
        ("the global generator of Python (random)", hash(random.getstate())),
        ("the global generator of NumPy (numpy.random)", hash(parts)),
    ]
