"""`topdp agent rehearse`: an agent with seeded noise, canaries or failpoints, only for tests and audits."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topdp.cli import agent_commands

if TYPE_CHECKING:
    from topdp.agents.runtime.agent_hooks import AgentHooks

Seeded = Annotated[bool, typer.Option("--seeded", help="Noise from the manifest's seed; not private.")]
Canaries = Annotated[
    Path | None,
    typer.Option("--canaries", metavar="FILE", help="Plant these canaries and record; not private."),
]


def rehearse(*, seeded: bool = False, canaries: Path | None = None, **arguments: Any) -> None:
    """Run an agent for tests or audits; not private.

    Like `agent start`, but with seeded noise or with canaries.
    """

    def make_hooks() -> AgentHooks:
        from topdp.agents.development.development_hooks import rehearsal_hooks

        return rehearsal_hooks(arguments, seeded=seeded, canaries=canaries)

    agent_commands.take_part(arguments, make_hooks)


def _as_start_with_options() -> inspect.Signature:
    """Return the signature of `agent start` with the options `--seeded` and `--canaries` added."""
    start = inspect.signature(agent_commands.start, eval_str=True)
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter("seeded", keyword, default=False, annotation=Seeded),
        inspect.Parameter("canaries", keyword, default=None, annotation=Canaries),
    ]
    parameters = [*(option.replace(kind=keyword) for option in start.parameters.values()), *added]
    return start.replace(parameters=parameters)


# The command line reads the options of `rehearse` from its signature and annotations.
rehearse.__signature__ = _as_start_with_options()  # type: ignore[attr-defined]
rehearse.__annotations__ = {name: item.annotation for name, item in rehearse.__signature__.parameters.items()}  # type: ignore[attr-defined]
