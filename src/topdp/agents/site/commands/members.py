"""`topdp agent renew`: a new certificate or address of an agent, while federations run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topdp.agents.site.commands.options import IdentityFolder, need_parts
from topdp.report.terminal import Json, print_json, remark, show


def renew(
    folder: IdentityFolder = Path("identity"),
    address: Annotated[
        str | None, typer.Option("--address", help="A new host:port; else it stays as it is.")
    ] = None,
    keep_key: Annotated[
        bool, typer.Option("--keep-key", help="The address alone changes; key and certificate stay.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Makes the next card of this agent, signed by the key before; a running agent tells its neighbours."""
    need_parts()
    from topdp.agents.terms import succession

    made = succession.renew(folder, address, keep_key)
    last = made.card.x509.not_valid_after_utc
    if as_json:
        print_json(
            {
                "name": made.card.name,
                "number": made.number,
                "fingerprint": made.card.fingerprint,
                "address": made.card.address,
                "valid_until": f"{last:%F}",
            }
        )
        return
    show(f"{made.card.name}: card {made.number}, {made.card.fingerprint}, valid until {last:%F}")
    remark(
        "The running agent tells its neighbours, or the next start does. Once all know the new card, the "
        "start after that shows it. Keep the folder whole: the first key is still needed."
    )
