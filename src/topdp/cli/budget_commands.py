"""`topdp agent ledger` and `budget`: what one run has spent, and what all runs of a site have spent."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from topdp.agents.ledger.ledger_entries import finite_or_none
from topdp.base.number_text import rounded_up
from topdp.cli.agent_options import IdentityFolder, Site, State, epsilon_in_words
from topdp.errors import InputError
from topdp.views.terminal.console import Json, print_result, show


def show_charges(state: State, as_json: Json = False) -> None:
    """List every charge: round, kind and cost."""
    from topdp.agents.ledger.ledger import Ledger
    from topdp.views.terminal import tables

    entries = list(Ledger(state, writable=False).entries())
    table = tables.uncut("round", "kind", "charge", "spent", "worst case", "sent to")
    for entry in entries:
        table.add_row(
            str(entry.round),
            entry.kind,
            rounded_up(entry.charge, 3),
            rounded_up(entry.total),
            epsilon_in_words(entry.worst_case),
            ", ".join(entry.digests) or "-",
        )
    print_result(as_json, {"charges": [asdict(entry) for entry in entries]}, table)


def verify_ledger(state: State, as_json: Json = False) -> None:
    """Verify that a ledger is complete and consistent.

    The exit code is 4 otherwise.
    """
    from topdp.agents.ledger.ledger import Ledger
    from topdp.agents.ledger.ledger_check import verify

    ledger = Ledger(state, writable=False)
    charges = verify(ledger)
    facts = {"charges": charges, "epsilon": ledger.total, "whole": True}
    text = f"{charges} charges, epsilon {rounded_up(ledger.total, 6)}: the ledger is complete and consistent."
    print_result(as_json, facts, text)


def show_site(site: Site = None, identity: IdentityFolder = Path("identity"), as_json: Json = False) -> None:
    """List every run, and the most that a record (or a person) has spent.

    The latter is the largest total of one record over all runs, or of one person if the runs protect persons.
    """
    from topdp.agents.ledger.site_budget import SiteBudget
    from topdp.agents.node.site_reservation import site_folder
    from topdp.views.terminal import tables

    budget = SiteBudget(site_folder(site, identity)[0], writable=False)
    limit, runs, spent = budget.limit, budget.runs(), budget.spent()
    unit = budget.unit
    facts = {
        "unit": unit,
        "limit": {"epsilon": limit.epsilon, "delta": limit.delta},
        "epsilon": {kind: finite_or_none(each.epsilon) for kind, each in spent.items()},
        "delta": {kind: each.delta for kind, each in spent.items()},
        "runs": runs,
    }
    table = tables.uncut("run", "federation", "agent", f"{unit}s", "epsilon", "delta", "adjacency", "")
    for run in runs:
        epsilon = run["epsilon"]
        words = epsilon_in_words(None if epsilon is None else float(str(epsilon)))
        cells = (run["number"], str(run["federation"])[:12], run["agent"], run["records"], words)
        status = "spent" if run["final"] else "reserved"
        table.add_row(*map(str, (*cells, run["delta"], run["adjacency"], status)))
    totals = [
        f"Largest total of a {unit}: epsilon {epsilon_in_words(finite_or_none(each.epsilon))}, delta "
        f"{each.delta:.3g} ({kind})."
        for kind, each in spent.items()
    ]
    limit_words = f"Limit: {limit_in_words(limit.epsilon, limit.delta)}."
    print_result(as_json, facts, table, *totals, limit_words)


def set_limit(
    epsilon: Annotated[
        float | None, typer.Option(help="The largest epsilon that a record or person may spend in all runs.")
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="The largest delta that a record or person may spend in all runs.")
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="No limit: runs are only recorded.")] = False,
    site: Site = None,
    identity: IdentityFolder = Path("identity"),
) -> None:
    """Set the limit of the site budget.

    Runs that would exceed it are refused before they send anything (exit code 3).
    """
    from topdp.agents.ledger.site_budget import SiteBudget, SiteLimit
    from topdp.agents.node.site_reservation import site_folder

    if none == (epsilon is not None or delta is not None):
        raise InputError(
            "Expected either --epsilon, --delta or both, or --none alone, got "
            + ("--none with another limit. Remove one." if none else "no option. Add one.")
        )
    budget = SiteBudget(site_folder(site, identity)[0])
    budget.set_limit(SiteLimit(epsilon, delta))
    budget.close()
    show(f"Limit: {limit_in_words(epsilon, delta)}; runs that have begun continue.")


def limit_in_words(epsilon: float | None, delta: float | None) -> str:
    """Return a limit as text.

    >>> limit_in_words(3.0, None), limit_in_words(3.0, 1e-5), limit_in_words(None, None)
    ('epsilon 3', 'epsilon 3, delta 1e-05', 'none')
    """
    parts = {"epsilon": epsilon, "delta": delta}
    return ", ".join(f"{name} {value:.4g}" for name, value in parts.items() if value is not None) or "none"


def close_run(
    state: State,
    site: Site = None,
    identity: IdentityFolder = Path("identity"),
    leave: Annotated[
        bool,
        typer.Option(
            "--leave",
            help="Take no further part, not even with noise: also erase the key of noise that agents share. "
            "For an agent without which the others have gone on or ended.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """End a run permanently.

    Its records enter no further round, and its unspent budget is free again.
    """
    from topdp.agents.node import site_reservation

    folder, _ = site_reservation.site_folder(site, identity)
    epsilon = finite_or_none(site_reservation.close_run(folder, state, identity if leave else None))
    print_result(
        as_json,
        {"epsilon": epsilon},
        f"The run is final: epsilon {epsilon_in_words(epsilon)} spent. Its records enter no further round.",
    )
