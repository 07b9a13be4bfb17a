"""A fixture that makes agents of tests quick: no fsync, because crashes are simulated, and one thread."""

import itertools
import random

import pytest
import torch

from topdp.agents.ledger import ledger_database
from topdp.agents.runtime import live_pairing_loop
from topdp.learning.gradients import ClippedGradients


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(ledger_database, "SYNCHRONOUS_MODE", "OFF")
    seeds = itertools.count()
    monkeypatch.setattr(live_pairing_loop, "PARTNER_ORDER", lambda: random.Random(next(seeds)))
    known = {}  # gradients of one small model, so that each is checked once and not per agent and restart

    def shared(flat, clip, *kinds, **options):
        key = (flat.dimension, flat.dtype, clip, kinds, *options.items())
        return known.setdefault(key, ClippedGradients(flat, clip, *kinds, **options))

    monkeypatch.setattr("topdp.learning.gradients.clipped_gradients.ClippedGradients", shared)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
