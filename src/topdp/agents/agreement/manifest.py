"""The manifest: members, links, the configuration of the run, and rules, in one document for all members.

A manifest is identified by its hash. Agents refuse neighbours that have another manifest. A manifest contains
no secret. Its links define the graph; `topology` in the run's configuration is ignored.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tomli_w
from pydantic import AfterValidator, Field, ValidationError, model_validator

from topdp.agents.agreement.identity_card import Card, card_from_tree, check_address
from topdp.base import toml_text
from topdp.base.files import read_text, write_atomically
from topdp.errors import InputError, TrustError
from topdp.runs import config as configurations
from topdp.runs.config import RunConfig, Section, did_you_mean
from topdp.topology import Topology, TopologyError, from_edges

MANIFEST_FORMAT = 1
SIGNATURES_KEY = "signatures"  # beside the document, whose hash is signed


AnySection = TypeVar("AnySection", bound=Section)


class ManifestError(InputError):
    """A manifest that cannot be used. A TrustError is raised for one that was changed after it was made."""


class Rules(Section):
    """What all members agree on besides the configuration of the run."""

    dead_neighbour: Literal["wait", "go-on"] = "wait"
    """What to do if a neighbour is silent for `idle_timeout`: wait, or go on and mix the rows that arrived.

    If agents share noise, going on is final: nothing more is accepted from that neighbour.
    """

    departures: Annotated[int, Field(ge=0)] = 0
    """The reserve: how many agents may drop out, or be refused by others, while all charges still hold.

    Under `adaptive`, if some rows are hidden from some agents, a departed agent counts as one more colluder.
    So noise is calibrated and charged for `privacy.colluders` plus this number of colluders.
    """

    idle_timeout: Annotated[float, Field(ge=0.05, le=3600, allow_inf_nan=False)] = 30.0
    """Seconds without progress after which an agent closes a link or aborts an exchange.

    A link must transfer a few pieces of 256 KiB in this time: at 30 s, 100 kB/s suffice for busy links.
    """

    largest_body: Annotated[int, Field(ge=1024, le=2**31)] = 64 * 2**20
    """The largest message in bytes."""

    in_flight: Annotated[int, Field(ge=1, le=256)] = 4
    """The largest number of simultaneous requests in one direction of a link.

    The memory of a link is below 4 · in_flight · largest_body.
    """

    dtype: Literal["auto", "float32", "float64"] = "auto"
    """The type in which rows are sent. Gradients are always summed in float64.

    `auto`: float64 if the guarantee relies on rows that some agents do not see, because these must not be
    rounded; otherwise the model's type.
    """

    largest_norm: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)] = 1e4
    """The largest norm of an accepted row. Rows must stay finite when they are squared and added."""

    largest_drift: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Ignore rows whose distance from an agent's own row is more than this factor times the median; 0: never.

    The median is over the rows of all neighbours. With 3 or more, honest rows are hardly ever ignored. The
    rule needs at least three neighbours.
    """

    relay: Annotated[str, AfterValidator(check_address)] = ""
    """`host:port` of a `topdp relay`, which joins neighbours without addresses; empty: none."""

    @property
    def tolerates_silence(self) -> bool:
        """Whether agents go on without a silent neighbour."""
        return self.dead_neighbour == "go-on"


FiniteNumber = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Amendment(Section):
    """The section `amends` of a manifest: facts about the manifest that it replaces (`amendments`)."""

    manifest: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")]  # hash
    round: Annotated[int, Field(ge=0)]  # last round of that run
    delta: FiniteNumber | dict[str, FiniteNumber]  # of that run, or by name; that of the new run is added
    granted: dict[str, FiniteNumber]  # ε for that run and all runs that amend it, by name
    spent: dict[str, FiniteNumber]  # ε of that run according to its plan, by name

    @model_validator(mode="after")
    def _expect_same_members(self) -> Amendment:
        if set(self.granted) != set(self.spent):
            raise ValueError("Input should have the same members in granted and spent")
        if isinstance(self.delta, dict) and set(self.delta) != set(self.spent):
            raise ValueError("Input should have the same members in delta and spent")
        return self

    def spent_delta(self, name: str) -> float:
        """Return δ that the previous run cost `name`; 0 if it was no member."""
        if name not in self.spent:
            return 0.0
        return self.delta[name] if isinstance(self.delta, dict) else self.delta


class _Document(Section):
    """A manifest as it is written, without its hash and signatures."""

    format: Literal[1]
    rules: dict[str, Any]
    agents: list[Any]
    links: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    run: dict[str, Any]
    amends: dict[str, Any] | None = None  # if it replaces another manifest


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A manifest: cards in the order of agent numbers 0 .. n-1, links as pairs of agent numbers i < j."""

    cards: tuple[Card, ...]
    links: tuple[tuple[int, int], ...]
    config: RunConfig
    rules: Rules
    amends: Amendment | None  # None if it amends no other manifest
    tree: dict[str, Any]  # the document without its hash, as written: later versions hash the same
    signatures: dict[str, str] = field(default_factory=dict)  # of an amendment: member -> signature in hex

    def __post_init__(self) -> None:
        if len(set(self.links)) != len(self.links):
            twice_linked = next(link for link, count in Counter(self.links).items() if count > 1)
            raise ManifestError(f"Expected every link once, got {self._link_in_words(twice_linked)} twice.")
        for link in self.links:
            if not any(self.cards[end].address for end in link) and not self.rules.relay:
                raise ManifestError(
                    f"Expected an address at one end of the link {self._link_in_words(link)}, got none: "
                    "neither end can dial the other. Open a port at one of them, or name a relay (--relay)."
                )
        _ = self.topology

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the document, in hex; the same on every machine."""
        return _hash(self.tree)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(card.name for card in self.cards)

    @cached_property
    def topology(self) -> Topology:
        try:
            return from_edges(self.links, len(self.cards), name="federation", labels=self.names)
        except TopologyError as error:
            raise ManifestError(f"links: {error}") from None

    def number(self, name: str) -> int:
        """Return the agent's number in plans. Raise ManifestError if it is not a member."""
        return _number(self.names, name, "Expected")

    def card(self, name: str) -> Card:
        return self.cards[self.number(name)]

    def neighbours(self, name: str) -> tuple[str, ...]:
        me = self.number(name)
        return tuple(other for k, other in enumerate(self.names) if self.topology.adjacency[me, k])

    def dialer(self, first: str, second: str) -> str:
        """Return the end of a link that dials: the lower number, unless only that end can be dialled."""
        low, high = sorted((first, second), key=self.number)
        return low if self.card(high).address else high

    def relayed(self, first: str, second: str) -> bool:
        """Return whether two neighbours connect through the relay, because neither can be dialled."""
        return not (self.card(first).address or self.card(second).address)

    def to_toml(self) -> str:
        head = {"format": self.tree["format"], "hash": self.hash}
        signed = {SIGNATURES_KEY: self.signatures} if self.signatures else {}
        return tomli_w.dumps({**head, **self.tree, **signed}, multiline_strings=True)

    def write(self, path: Path) -> None:
        """Write the file atomically. An existing file is replaced."""
        write_atomically(path, self.to_toml())

    def _link_in_words(self, link: tuple[int, int]) -> str:
        return " - ".join(self.names[end] for end in link)


def new_manifest(
    cards: Iterable[Card], links: Iterable[tuple[str, str]], config: RunConfig, rules: Rules | None = None
) -> Manifest:
    """Make the manifest of these agents. Links are pairs of names in either order."""
    cards = tuple(cards)
    names = _names(cards)
    pairs = {_link(names, a, b) for a, b in links}
    tree = {
        "format": MANIFEST_FORMAT,
        "rules": (rules or Rules()).model_dump(),
        "links": [[names[i], names[j]] for i, j in sorted(pairs)],
        "agents": [card.to_tree() for card in cards],
        "run": config.model_dump(exclude_none=True),
    }
    return _from_tree(tree, "manifest")


def read_manifest(path: Path) -> Manifest:
    """Read and check the manifest in a file."""
    return parse_manifest(read_text(path), str(path))


def parse_manifest(text: str, origin: str = "manifest") -> Manifest:
    """Parse a manifest (TOML). Raise TrustError if the hash of its content differs from the stated one.

    `origin` names the file in errors.
    """
    try:
        tree = toml_text.parse_toml(text)
    except ValueError as error:
        raise ManifestError(f"Expected a manifest (TOML) in {origin}, but: {error}") from None
    stated, signatures = tree.pop("hash", None), tree.pop(SIGNATURES_KEY, {})
    if not isinstance(signatures, dict) or not all(isinstance(text, str) for text in signatures.values()):
        raise ManifestError(
            f"{origin}: {SIGNATURES_KEY}: expected names with signatures as strings, got another kind."
        )
    try:
        actual = _hash(tree)
    except (TypeError, ValueError):
        raise ManifestError(
            f"{origin}: expected strings, numbers, lists and tables only, got another kind of value."
        ) from None
    if stated != actual:
        raise TrustError(
            f"{origin}: expected the hash {actual}, but the file states {stated!r:.80}: it is damaged or was "
            f"changed. Get it again, or make a new one with `topdp federation create`."
        )
    return replace(_from_tree(tree, origin), signatures=signatures)


def as_amendment(manifest: Manifest, amends: dict[str, Any]) -> Manifest:
    """Return `manifest` with the section `amends` (the fields of `Amendment`), which changes its hash."""
    return _from_tree({**manifest.tree, "amends": amends}, "amendment")


def _from_tree(tree: dict[str, Any], origin: str) -> Manifest:
    try:
        document = _parse_section(_Document, tree)
        cards = tuple(card_from_tree(entry, f"agents[{k}]") for k, entry in enumerate(document.agents))
        names = _names(cards)
        amends = document.amends
        return Manifest(
            cards=cards,
            links=tuple(_link(names, a, b) for a, b in document.links),
            config=configurations.parse_stored(document.run, "run"),
            rules=parse_rules(document.rules),
            amends=None if amends is None else _parse_section(Amendment, amends, "amends"),
            tree=tree,
        )
    except TrustError as error:
        raise TrustError(f"{origin}: {error}") from None
    except InputError as error:
        raise ManifestError(f"{origin}: {error}") from None


def _names(cards: tuple[Card, ...]) -> list[str]:
    """Return the agents' names. Raise ManifestError if two cards share a name, fingerprint or address."""
    for attribute, values in (
        ("name", [card.name for card in cards]),
        ("fingerprint", [card.fingerprint for card in cards]),
        ("address", [card.address for card in cards if card.address]),
    ):
        for value, count in Counter(values).items():
            if count > 1:
                raise ManifestError(f"agents: expected every {attribute} once, got {value!r} {count} times.")
    return [card.name for card in cards]


def parse_rules(tree: Any) -> Rules:
    """Return rules with these keys and values. Raise ManifestError that names the first invalid key."""
    return _parse_section(Rules, tree, "rules")


def _parse_section(kind: type[AnySection], tree: Any, *path: str) -> AnySection:
    """Return the section at `path`. Raise ManifestError that names the first invalid key."""
    try:
        return kind.model_validate(tree)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join([*path, *map(str, fault["loc"])])
        if fault["type"] == "extra_forbidden":
            nearest = did_you_mean(str(fault["loc"][-1]), [*kind.model_fields])
            raise ManifestError(f"{key}: no such key.{nearest}") from None
        raise ManifestError(f"{key}: {fault['msg']}, got {fault['input']!r:.80}.") from None


def _link(names: list[str], first: str, second: str) -> tuple[int, int]:
    i, j = sorted(_number(names, name, "links: expected") for name in (first, second))
    return i, j


def _number(names: Sequence[str], name: str, expected: str) -> int:
    """Return the position of `name`. Raise ManifestError that begins with `expected` if there is none."""
    if name not in names:
        nearest = did_you_mean(name, [*names])
        raise ManifestError(f"{expected} the name of an agent in the manifest, got {name!r:.80}.{nearest}")
    return names.index(name)


def _hash(tree: dict[str, Any]) -> str:
    """Return the hash of the document as sorted JSON: order and comments have no effect."""
    text = json.dumps(tree, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(b"topdp manifest\n" + text.encode("ascii")).hexdigest()
