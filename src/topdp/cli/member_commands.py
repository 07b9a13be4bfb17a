"""`topdp agent renew`, `agent sign`, `federation amend`: changes of cards and members."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topdp.base.number_text import rounded_up
from topdp.cli.agent_options import IdentityFolder, expect_agents_installed
from topdp.cli.shared_options import expect_new_file
from topdp.runs.progress_display import show_progress
from topdp.views.terminal.console import Json, err, print_result, remark


def renew(
    folder: IdentityFolder = Path("identity"),
    address: Annotated[
        str | None, typer.Option(help="A new host:port; by default it stays the same.")
    ] = None,
    keep_key: Annotated[
        bool, typer.Option("--keep-key", help="Change only the address; keep key and certificate.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create the next card of this agent.

    The card is signed with the current key. A running agent announces it.
    """
    expect_agents_installed()
    from topdp.agents.agreement import card_succession

    successor = card_succession.renew(folder, address, keep_key)
    card = successor.card
    valid_until = f"{card.x509.not_valid_after_utc:%F}"
    print_result(
        as_json,
        {
            "name": card.name,
            "number": successor.number,
            "fingerprint": card.fingerprint,
            "address": card.address,
            "valid_until": valid_until,
        },
        f"{card.name}: card {successor.number}, {card.fingerprint}, valid until {valid_until}",
    )
    if not as_json:
        remark(
            "A running agent announces the card to its neighbours now; otherwise it does so at the next "
            "start. After all neighbours have the card, the agent uses it from its next start on. Keep the "
            "whole folder, because the first key is still needed."
        )


def amend(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="The current manifest.")],
    from_round: Annotated[int, typer.Option(help="The first round that the current run does not make.")],
    add: Annotated[
        list[Path] | None, typer.Option(metavar="CARD", help="The card of a new member. Repeatable.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A member that leaves. Repeatable.")
    ] = None,
    links: Annotated[str | None, typer.Option(help="New edges: ada-dora,bob-dora.")] = None,
    records: Annotated[str | None, typer.Option(help="Record counts of the new members: 900.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of the new run; by default the remaining ones.")
    ] = None,
    place: Annotated[Path, typer.Option("--out", help="The amendment.")] = Path("manifest-2.toml"),
    as_json: Json = False,
) -> None:
    """Create an amendment of a manifest.

    The run ends for all members, and a new one begins with the remaining budgets.
    """
    expect_agents_installed()
    expect_new_file(place)
    with show_progress(err, "federation", "calibrating"):
        from topdp.agents.agreement import federation_manifest
        from topdp.agents.agreement.identity_card import read_card
        from topdp.agents.agreement.manifest import read_manifest
        from topdp.agents.agreement.run_setup import granted_budgets, granted_deltas
        from topdp.agents.node import amending

        before = read_manifest(manifest)
        new_cards = tuple(read_card(card) for card in add or [])
        names = (*before.names, *(card.name for card in new_cards))
        change = amending.MembershipChange(
            round=from_round - 1,
            add=new_cards,
            remove=tuple(remove or ()),
            links=tuple(federation_manifest.parse_links(links, names)) if links else (),
            records=federation_manifest.parse_record_counts(records, len(new_cards)) if records else (),
            rounds=rounds,
        )
        amended, account, remarks = amending.amend(before, change)
        amended.write(place)
    for each in remarks:
        remark(each)
    amendment = amended.amends
    assert amendment is not None
    budgets, new_deltas = granted_budgets(amended), granted_deltas(amended)
    lines, deltas = [], []
    for name in dict.fromkeys([*before.names, *amended.names]):
        spent, budget = amendment.spent.get(name, 0.0), budgets.get(name, 0.0)
        delta = amendment.spent_delta(name) + new_deltas.get(name, 0.0)
        deltas.append(delta)
        lines.append(
            f"{name}: epsilon {rounded_up(spent)} before + {rounded_up(budget)} = "
            f"{rounded_up(spent + budget)} at most, delta {rounded_up(delta, 2)}"
        )
    print_result(
        as_json,
        {
            "manifest": str(place),
            "hash": amended.hash,
            "amends": amendment.model_dump(),
            "budgets": budgets,
            "delta": max(deltas),
            "privacy": account.summary(),
        },
        f"{place}: {len(amended.names)} agents, hash {amended.hash}; the current run ends with round "
        f"{amendment.round}",
        *lines,
        "Each member signs it in turn: topdp agent sign. Agents run it after all have signed.",
    )


def sign(
    manifest: Annotated[Path, typer.Argument(metavar="MANIFEST", help="An amendment.")],
    folder: IdentityFolder = Path("identity"),
    as_json: Json = False,
) -> None:
    """Sign an amendment for this agent.

    Adds the signature to the file, and prints the content that it signs.
    """
    expect_agents_installed()
    from topdp.agents.agreement import amendments
    from topdp.agents.agreement.card_succession import load_identities
    from topdp.agents.agreement.manifest import read_manifest
    from topdp.agents.agreement.run_setup import granted_budgets, granted_deltas
    from topdp.agents.node.carried_budget import expect_listed

    amended, identities = read_manifest(manifest), load_identities(folder)
    name = identities[0].card.name
    expect_listed(amended, name, folder)
    signed = amendments.sign_amendment(manifest, amended, identities)
    missing = amendments.missing_signatures(signed)
    amendment = signed.amends
    assert amendment is not None
    spent, granted = amendment.spent.get(name), amendment.granted.get(name)
    budget, delta = granted_budgets(signed)[name], granted_deltas(signed)[name]
    before = "joins, " if spent is None else f"{rounded_up(spent)} of {rounded_up(granted or 0.0)} before + "
    print_result(
        as_json,
        {
            "hash": signed.hash,
            "signed": sorted(signed.signatures),
            "missing": missing,
            "amends": {"manifest": amendment.manifest, "round": amendment.round},
            "members": list(signed.names),
            "spent": spent,
            "granted": granted,
            "budget": budget,
            "delta": delta,
        },
        f"The run {amendment.manifest[:16]} ends with round {amendment.round}; then "
        f"{', '.join(signed.names)}.",
        f"{name}: epsilon {before}{rounded_up(budget)} at most, delta {rounded_up(delta, 2)} of the new run",
        f"{manifest}: signed{'; still to sign: ' + ', '.join(missing) if missing else ' by all'}.",
    )
