"""The method that follows from a job if `method.name` is "auto". No data, no torch.

`job_settings.py` chooses the other settings, which need the number of records.
"""

from __future__ import annotations

from topdp.privacy.answers import CLAIMED, guarantee_kind
from topdp.runs.config import AUTO, RunConfig

SINGLE_SITE_METHOD = "central"
PUBLISHED = "plain"
OWN_NOISE = "muffliato"
PAIR_NOISE = "correlated"


def with_job_method(config: RunConfig, agents: int) -> RunConfig:
    """Return the configuration with the name of a method, if it is "auto", for this number of agents."""
    if config.method.name != AUTO:
        return config
    method = config.method.model_copy(update={"name": job_method(config, agents)})
    return config.model_copy(update={"method": method})


def job_method(config: RunConfig, agents: int) -> str:
    """Return the name of the method for a job with this number of agents.

    - One agent: `central`, because nobody sends anything.
    - Exchanges in pairs (`method.mode = "async"`), or the guarantee "claimed": `plain`.
    - Otherwise `correlated`, if at least one agent besides the colluders helps to hide an agent. This needs
      three agents against one colluder, a guarantee that relies on others, and no robust rule.
    - Otherwise `muffliato`: each agent hides its records alone, and all agents have nearly the same estimate.
      Pair noise gains nothing for two agents, because each knows the pair noise of the other.

    >>> [job_method(RunConfig(), agents) for agents in (1, 2, 3)]
    ['central', 'muffliato', 'correlated']
    """
    if agents == 1:
        return SINGLE_SITE_METHOD
    if config.method.mode == "async" or config.privacy.guarantee == CLAIMED.name:
        return PUBLISHED
    covered = guarantee_kind(config.privacy.guarantee).relies_on_others and config.robust.rule == "mean"
    return PAIR_NOISE if covered and config.privacy.colluders <= agents - 2 else OWN_NOISE
