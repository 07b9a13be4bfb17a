"""What a federation does not take from a configuration of the simulator."""

import pytest

from topdp import topology
from topdp.agents.terms import federation
from topdp.agents.terms.manifest import Rules
from topdp.settings import config
from topdp.settings.config import ConfigError


def test_sinks_are_refused_before_anything_is_calibrated():
    wanted = config.read(changes=['report.sinks=["wandb"]'])
    with pytest.raises(ConfigError, match=r"report\.sinks.*simulator's.*--metrics"):
        federation.of([], topology.ring(3), (10, 10, 10), wanted, Rules())
