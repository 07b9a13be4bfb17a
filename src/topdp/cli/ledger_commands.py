"""`topdp agent ledger show`, `verify`: the charges of an agent."""

from __future__ import annotations

from topdp.cli.agent_options import State, epsilon_in_words, print_result
from topdp.views.terminal.console import Json, print_json, show


def show_charges(state: State, as_json: Json = False) -> None:
    """List every charge: round, kind and cost."""
    from dataclasses import asdict

    from topdp.agents.ledger.ledger import Ledger

    entries = list(Ledger(state, writable=False).entries())
    if as_json:
        print_json({"charges": [asdict(entry) for entry in entries]})
        return
    from topdp.views.terminal import tables

    table = tables.uncut("round", "kind", "charge", "spent", "worst case", "sent to")
    for entry in entries:
        table.add_row(
            str(entry.round),
            entry.kind,
            f"{entry.charge:.3g}",
            f"{entry.total:.4g}",
            epsilon_in_words(entry.worst_case),
            ", ".join(entry.digests) or "-",
        )
    show(table)


def verify_ledger(state: State, as_json: Json = False) -> None:
    """Verify that a ledger is complete and consistent.

    The exit code is 4 otherwise.
    """
    from topdp.agents.ledger.ledger import Ledger
    from topdp.agents.ledger.ledger_check import verify

    ledger = Ledger(state, writable=False)
    charges = verify(ledger)
    facts = {"charges": charges, "epsilon": ledger.total, "whole": True}
    print_result(
        as_json,
        facts,
        f"{charges} charges, epsilon {ledger.total:.6g}: the ledger is complete and consistent.",
    )
