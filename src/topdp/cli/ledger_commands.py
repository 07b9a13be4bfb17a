"""`topdp agent ledger show`, `verify`: what an agent has spent."""

from __future__ import annotations

from topdp.cli.agent_options import State, epsilon_in_words
from topdp.views.terminal.console import Json, print_json, show


def show_charges(state: State, as_json: Json = False) -> None:
    """Every charge: when, what, how much."""
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


def verify_books(state: State, as_json: Json = False) -> None:
    """Reads everything and says whether the books are whole; exit code 4 if not."""
    from topdp.agents.ledger.ledger import Ledger
    from topdp.agents.ledger.ledger_check import verify

    ledger = Ledger(state, writable=False)
    charges = verify(ledger)
    if as_json:
        print_json({"charges": charges, "epsilon": ledger.total, "whole": True})
    else:
        show(f"{charges} charges, epsilon {ledger.total:.6g}: the books are whole.")
