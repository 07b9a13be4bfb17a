"""`topdp agent renew`, `agent sign`, `federation amend`: cards and members change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topdp.cli.agent_options import IdentityFolder, need_parts
from topdp.runs.config import ConfigError
from topdp.views.terminal.console import Json, err, print_json, remark, show
from topdp.views.terminal.progress_display import signs_of_life


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
    from topdp.agents.agreement import card_succession

    made = card_succession.renew(folder, address, keep_key)
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


def amend(
    manifest: Annotated[Path, typer.Argument(help="The manifest that is in force.")],
    from_round: Annotated[int, typer.Option("--from-round", help="The first round that is no longer made.")],
    add: Annotated[list[Path] | None, typer.Option("--add", metavar="CARD", help="Who joins.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", metavar="NAME", help="Who leaves.")] = None,
    links: Annotated[str | None, typer.Option("--links", help="New ones: ada-dora,bob-dora.")] = None,
    records: Annotated[str | None, typer.Option("--records", help="Of those who join: 900.")] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="Of the new run; else those that are left.")
    ] = None,
    place: Annotated[Path, typer.Option("--out", help="The amendment.")] = Path("manifest-2.toml"),
    as_json: Json = False,
) -> None:
    """A manifest in place of another: the run ends for all, a new one begins with what is left of budgets."""
    need_parts()
    if place.exists():
        raise ConfigError(f"--out: {place} exists, and agents may run by it: name another file.")
    with signs_of_life(err, "federation") as progress:
        progress("calibrating")
        from topdp.agents.agreement import federation_manifest
        from topdp.agents.agreement import manifest as manifests
        from topdp.agents.agreement.amendments import amendment_of
        from topdp.agents.agreement.identity_card import read_card
        from topdp.agents.agreement.run_setup import granted_budgets
        from topdp.agents.node import amending

        before = manifests.read_manifest(manifest)
        joins = tuple(read_card(card) for card in add or [])
        names = (*before.names, *(card.name for card in joins))
        change = amending.MembershipChange(
            round=from_round - 1,
            add=joins,
            remove=tuple(remove or ()),
            links=tuple(federation_manifest.parse_links(links, names)) if links else (),
            records=federation_manifest.parse_record_counts(records, len(joins)) if records else (),
            rounds=rounds,
        )
        made, account, said = amending.amend(before, change)
        made.write(place)
    for words in said:
        remark(words)
    told = amendment_of(made)
    assert told is not None
    budgets = granted_budgets(made)
    deltas = {
        name: told.delta * (name in told.spent) + made.config.privacy.delta * (name in budgets)
        for name in dict.fromkeys([*before.names, *made.names])
    }
    if as_json:
        print_json(
            {
                "manifest": str(place),
                "hash": made.hash,
                "amends": told.to_tree(),
                "budgets": budgets,
                "delta": max(deltas.values()),
                "privacy": account.summary(),
            }
        )
        return
    show(f"{place}: {len(made.names)} agents, hash {made.hash}; the run before ends with round {told.round}")
    for name, delta in deltas.items():
        spent, new = told.spent.get(name, 0.0), budgets.get(name, 0.0)
        show(f"{name}: epsilon {spent:.4g} before + {new:.4g} = {spent + new:.4g} at most, delta {delta:.2g}")
    show("Each member signs it, in turn: topdp agent sign. Nobody runs it before all have.")


def sign(
    manifest: Annotated[Path, typer.Argument(help="An amendment.")],
    folder: IdentityFolder = Path("identity"),
    as_json: Json = False,
) -> None:
    """Puts this agent's signature under an amendment, in the file itself, and says what it has signed."""
    need_parts()
    from topdp.agents.agreement import amendments, card_succession
    from topdp.agents.agreement import manifest as manifests
    from topdp.agents.agreement.run_setup import granted_budgets
    from topdp.agents.node.carried_budget import expect_listed

    agreed, held = manifests.read_manifest(manifest), card_succession.load_identities(folder)
    name = held[0].card.name
    expect_listed(agreed, name, folder)
    signed = amendments.sign_amendment(manifest, agreed, held)
    missing = amendments.missing_signatures(signed)
    told = amendments.amendment_of(signed)
    assert told is not None
    spent, new, delta = (
        told.spent.get(name, 0.0),
        granted_budgets(signed)[name],
        signed.config.privacy.delta,
    )
    if as_json:
        print_json(
            {
                "hash": signed.hash,
                "signed": sorted(signed.signatures),
                "missing": missing,
                "amends": {"manifest": told.manifest, "round": told.round},
                "members": list(signed.names),
                "spent": told.spent.get(name),
                "granted": told.granted.get(name),
                "budget": new,
                "delta": delta,
            }
        )
    else:
        show(f"The run {told.manifest[:16]} ends with round {told.round}; then {', '.join(signed.names)}.")
        before = f"{spent:.4g} of {told.granted[name]:.4g} before + " if name in told.granted else "joins, "
        show(f"{name}: epsilon {before}{new:.4g} at most, delta {delta:.2g} of the new run")
        show(f"{manifest}: signed{'; still to sign: ' + ', '.join(missing) if missing else ' by all'}.")
