"""A manifest that replaces another one from a given round onwards: its content and its signatures.

An amendment is a manifest with `amends`: the hash of the previous manifest, the last round of that run, and
for each of its members the granted ε and the privacy cost of that run according to its plan. All members of
the new manifest sign it, with the cards that it lists. No agent begins the new run, or ends the previous one,
until all have signed. Members that are removed need not sign. `node/amending.py` makes amendments;
`node/carried_budget.py` computes what remains of a budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.manifest import Manifest
from topdp.errors import InputError, TrustError


def sign_amendment(path: Path, manifest: Manifest, identities: Sequence[Identity]) -> Manifest:
    """Add an agent's signature to the amendment in `path`, and return the signed manifest.

    `identities`: all identities of the agent; the one whose card the manifest lists signs.
    """
    if manifest.amends is None:
        raise InputError(f"Expected an amendment in {path}, got a manifest that amends none: do not sign it.")
    card = manifest.card(identities[0].card.name)
    listed = next((each for each in identities if each.card.fingerprint == card.fingerprint), None)
    if listed is None:
        raise TrustError(
            f"Expected the identity of {card.name}'s card in {path}, got another one. Name the folder of "
            "that identity with --identity."
        )
    signature = listed.sign(_signed_bytes(manifest)).hex()
    signed = replace(manifest, signatures={**manifest.signatures, card.name: signature})
    signed.write(path)
    return signed


def missing_signatures(manifest: Manifest) -> list[str]:
    """Return the names of members that have not signed. Raise TrustError if a signature is invalid."""
    for name, signature in manifest.signatures.items():
        try:
            is_valid = manifest.card(name).verifies(bytes.fromhex(signature), _signed_bytes(manifest))
        except (ValueError, TypeError):
            is_valid = False
        if not is_valid:
            raise TrustError(
                f"Expected a signature of {name} for the amendment {manifest.hash[:16]}, got an invalid one: "
                f"the file was changed after {name} signed it, or {name} never did. Have it signed again."
            )
    return [name for name in manifest.names if name not in manifest.signatures]


def expect_all_signed(manifest: Manifest) -> None:
    """Raise TrustError if the manifest is an amendment that not all its members have signed."""
    if manifest.amends is not None and (missing := missing_signatures(manifest)):
        raise TrustError(
            f"Expected the amendment {manifest.hash[:16]} to be signed by all its members, and "
            f"{', '.join(missing)} did not. Each member signs with `topdp agent sign` and passes the file on."
        )


def final_round(manifest: Manifest, amended: Manifest) -> int:
    """Return the last round of the run of `manifest`, which the amendment `amended` replaces.

    Raise TrustError if `amended` is not an amendment of `manifest` or not signed by all its members.
    """
    amendment = amended.amends
    if amendment is None or amendment.manifest != manifest.hash:
        raise TrustError(
            f"--amended-by: expected an amendment of the manifest {manifest.hash[:16]}, got one of "
            f"{amendment.manifest[:16] if amendment else 'none'}."
        )
    expect_all_signed(amended)
    return amendment.round


def _signed_bytes(manifest: Manifest) -> bytes:
    return b"topdp amendment 1\n" + manifest.hash.encode("ascii")
