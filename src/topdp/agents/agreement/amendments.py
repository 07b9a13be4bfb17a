"""A manifest that takes the place of another one, from a named round on: whose word it is, and what remains.

An amendment is a manifest of its own, with `amends`: the hash of the one before, the round after which all
end that run, and of each of its members what it was granted and what that run has cost by its plan. All who
are in the new manifest sign it, under the cards that it lists; nobody begins, or ends the run before, for one
that is not signed by all. Who is left out need not sign. How one is made: `site/amending.py`.

**Guarantees.** Accounts add up: rows of a run that ends early are some of the rows that its account is of,
and the new run begins at the public start, so both together are (ε₁ + ε₂, δ₁ + δ₂)-private (sequential
composition). Of ε₁ the larger counts: what the amendment says, or what the agent's own books do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.manifest import Manifest, ManifestError
from topdp.errors import BudgetError, InputError, TrustError

AMENDMENT_KEYS = ("manifest", "round", "delta", "granted", "spent")


@dataclass(frozen=True)
class Amendment:
    """What a manifest says about the one that it takes the place of."""

    manifest: str  # hash
    round: int  # the last one of that run
    delta: float  # of that run; the new run's comes on top
    granted: dict[str, float]  # ε for that run and all that follow from it, by name
    spent: dict[str, float]  # ε of that run, by its plan

    def to_tree(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in AMENDMENT_KEYS}


def amendment_of(manifest: Manifest) -> Amendment | None:
    """None for a manifest that amends nothing."""
    tree = manifest.tree.get("amends")
    if tree is None:
        return None
    try:
        if set(tree) != set(AMENDMENT_KEYS):
            raise ValueError
        found = Amendment(*(tree[key] for key in AMENDMENT_KEYS))
        numbers = [found.delta, *found.granted.values(), *found.spent.values()]
        if type(found.round) is not int or found.round < 0 or len(bytes.fromhex(found.manifest)) != 32:
            raise ValueError
        if set(found.granted) != set(found.spent) or not all(isfinite(n) and n >= 0 for n in numbers):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        raise ManifestError(f"amends: expected {', '.join(AMENDMENT_KEYS)} of the manifest before.") from None
    return found


def sign_amendment(path: Path, manifest: Manifest, held: Sequence[Identity]) -> Manifest:
    """The manifest in `path` with the signature of the agent that holds one of these identities."""
    if amendment_of(manifest) is None:
        raise InputError(f"Expected an amendment in {path}, got a manifest that amends none.")
    card = manifest.card(held[0].card.name)
    mine = next((one for one in held if one.card.fingerprint == card.fingerprint), None)
    if mine is None:
        raise TrustError(f"Expected the identity of {card.name}'s card in {path}, got another one.")
    signed = manifest.signed_by(card.name, mine.sign(_words(manifest)).hex())
    signed.write(path)
    return signed


def missing_signatures(manifest: Manifest) -> list[str]:
    """The members whose word is missing; one that is not theirs is a TrustError."""
    for name, signature in manifest.signatures.items():
        try:
            good = manifest.card(name).verifies(bytes.fromhex(signature), _words(manifest))
        except (ValueError, TypeError):
            good = False
        if not good:
            raise TrustError(
                f"Expected a signature of {name} under the amendment {manifest.hash[:16]}, got something "
                "else: it was changed after it was signed, or never was."
            )
    return [name for name in manifest.names if name not in manifest.signatures]


def expect_all_signed(manifest: Manifest) -> None:
    """Refuses an amendment that is not signed by all its members."""
    if amendment_of(manifest) is not None and (missing := missing_signatures(manifest)):
        raise TrustError(
            f"Expected the amendment {manifest.hash[:16]} to be signed by all its members, and "
            f"{', '.join(missing)} did not. Each signs with `topdp agent sign`, and passes the file on."
        )


def final_round(manifest: Manifest, amended: Manifest) -> int:
    """The last round of a run, where `amended` takes the place of its manifest."""
    found = amendment_of(amended)
    if found is None or found.manifest != manifest.hash:
        raise TrustError(
            f"Expected an amendment of the manifest {manifest.hash[:16]}, got one of "
            f"{found.manifest[:16] if found else 'none'}."
        )
    expect_all_signed(amended)
    return found.round


@dataclass(frozen=True)
class PreviousRun:
    """What an agent's own books of the run before say."""

    federation: str
    agent: str
    ended: bool  # for good, with the round that the amendment names or a later one
    spent: float | None  # ε; None: infinite
    budget: float | None = None  # one of the agent's own, below the manifest's; None: it had none


def remaining_budget(manifest: Manifest, name: str, books: PreviousRun) -> float:
    """ε that `name` may spend under an amendment. A budget of its own goes on, as over a restart."""
    found = amendment_of(manifest)
    assert found is not None and name in found.granted
    if (books.federation, books.agent) != (found.manifest, name) or not books.ended:
        raise TrustError(
            f"--after: expected the books of {name} for the run {found.manifest[:16]}, ended with round "
            f"{found.round}, got those of {books.agent} for {books.federation[:16]}"
            f"{'' if books.ended else ', which have not ended'}: first let that run come to its end with "
            "`topdp agent start --amended-by`, so that it spends nothing beyond."
        )
    granted = min(found.granted[name], books.budget or float("inf"))
    left = granted - max(found.spent[name], float("inf") if books.spent is None else books.spent)
    if left <= 0:
        raise BudgetError(
            f"Expected something left of the budget of {name}, {granted:.6g}: the run before has used it up."
        )
    return left


def _words(manifest: Manifest) -> bytes:
    return b"topdp amendment 1\n" + manifest.hash.encode("ascii")
