"""`topdp agent budget show`, `set`, `close`: what all runs on the same records have cost together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from topdp.cli.agent_options import IdentityFolder, Site, State, epsilon_in_words
from topdp.errors import InputError
from topdp.views.terminal.console import Json, print_json, show


def show_site(site: Site = None, identity: IdentityFolder = Path("identity"), as_json: Json = False) -> None:
    """Every run, and what the record that has spent most has spent in all of them."""
    from topdp.agents.ledger.site_budget import SiteBudget
    from topdp.agents.node.site_reservation import site_folder

    book = SiteBudget(site_folder(site, identity)[0], writable=False)
    limit, runs = book.limit, book.runs()
    spent = {kind: each.epsilon for kind, each in book.spent().items()}
    delta = {kind: each.delta for kind, each in book.spent().items()}
    if as_json:
        most = {kind: value if math.isfinite(value) else None for kind, value in spent.items()}
        facts = {"limit": {"epsilon": limit.epsilon, "delta": limit.delta}, "epsilon": most, "delta": delta}
        print_json({**facts, "runs": runs})
        return
    from topdp.views.terminal import tables

    table = tables.uncut("run", "federation", "agent", "records", "epsilon", "delta", "adjacency", "")
    for run in runs:
        epsilon = run["epsilon"]
        words = epsilon_in_words(None if epsilon is None else float(str(epsilon)))
        cells = (
            run["number"],
            str(run["federation"])[:12],
            run["agent"],
            run["records"],
            words,
            run["delta"],
        )
        table.add_row(*map(str, cells), str(run["adjacency"]), "spent" if run["final"] else "reserved")
    show(table)
    for kind, value in spent.items():
        words = epsilon_in_words(value if math.isfinite(value) else None)
        show(f"The record that has spent most: epsilon {words}, delta {delta[kind]:.3g} ({kind}).")
    show(f"Limit: {limit_in_words(limit.epsilon, limit.delta)}.")


def set_limit(
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Most that a record may spend in all runs together.")
    ] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="The same for delta.")] = None,
    none: Annotated[bool, typer.Option("--none", help="No limit: runs are written down only.")] = False,
    site: Site = None,
    identity: IdentityFolder = Path("identity"),
) -> None:
    """Sets the site's limit: runs that would pass it are refused before they send anything (exit code 3)."""
    from topdp.agents.ledger.site_budget import SiteBudget, SiteLimit
    from topdp.agents.node.site_reservation import site_folder

    if none == (epsilon is not None or delta is not None):
        raise InputError("Expected --epsilon, --delta or both; or --none.")
    book = SiteBudget(site_folder(site, identity)[0])
    book.set_limit(SiteLimit(epsilon, delta))
    book.close()
    show(f"Limit: {limit_in_words(epsilon, delta)}; runs that were let in go on.")


def limit_in_words(epsilon: float | None, delta: float | None) -> str:
    """
    >>> limit_in_words(3.0, None), limit_in_words(3.0, 1e-5), limit_in_words(None, None)
    ('epsilon 3', 'epsilon 3, delta 1e-05', 'none')
    """
    parts = {"epsilon": epsilon, "delta": delta}
    return ", ".join(f"{name} {value:.4g}" for name, value in parts.items() if value is not None) or "none"


def close_run(
    state: State, site: Site = None, identity: IdentityFolder = Path("identity"), as_json: Json = False
) -> None:
    """Ends a run for good: its data enter no round any more, and what it did not spend is free again."""
    from topdp.agents.node.site_reservation import close_run, site_folder

    epsilon = close_run(site_folder(site, identity)[0], state)
    if as_json:
        print_json({"epsilon": epsilon if math.isfinite(epsilon) else None})
    else:
        words = epsilon_in_words(epsilon if math.isfinite(epsilon) else None)
        show(f"The run is final: epsilon {words} spent, its data enter no round any more.")
