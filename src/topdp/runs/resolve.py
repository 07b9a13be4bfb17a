"""From a configuration to a resolved run: count records and choose a number for every `auto`. No torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from topdp.runs.agent_weights import with_agent_weights
from topdp.runs.auto_values import with_auto_values
from topdp.runs.config import RunConfig
from topdp.runs.job_gradient import named_gradient
from topdp.runs.job_settings import with_job_settings
from topdp.runs.named_records import record_counts
from topdp.runs.resolved_run import ResolvedRun, records_of
from topdp.runs.run_outline import RunOutline
from topdp.topology import Topology

if TYPE_CHECKING:
    from topdp.learning.output_gradient import OutputGradient


def resolve(
    config: RunConfig, graph: Topology | None = None, counts: tuple[int, ...] | None = None
) -> ResolvedRun:
    """Return the resolved run of a configuration.

    `graph` and `counts` (the number of records of each agent) replace those of the configuration. Without
    `counts`, records in a user's own files are read, to count them.
    """
    outline = RunOutline.of(config, graph)
    return resolve_outline(outline, record_counts(outline) if counts is None else counts)


def resolve_outline(
    outline: RunOutline, counts: tuple[int, ...], gradient: Callable[[], OutputGradient] | None = None
) -> ResolvedRun:
    """Return the resolved run of an outline in which agent i has counts[i] records.

    A resolved run with these records is returned unchanged. `gradient`: as for `with_job_settings`; None:
    from the model that the configuration names.
    """
    if isinstance(outline, ResolvedRun) and outline.counts == counts:
        return outline
    outline = with_job_settings(outline, counts, gradient or partial(named_gradient, outline))
    outline = with_agent_weights(outline, counts)
    analysis, schedule = records_of(outline, counts)
    config = with_auto_values(outline, analysis, schedule)
    return ResolvedRun.with_records(replace(outline, config=config), analysis, schedule)
