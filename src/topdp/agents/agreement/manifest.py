"""The manifest: who takes part, who is linked to whom, what is run, and which rules all of them keep.

One document for the whole federation, known by its hash. Agents refuse neighbours who hold another one. It
holds no secret. The graph is given by its links; `topology` in the run's configuration is not looked at.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import AfterValidator, Field, ValidationError

from topdp.agents.agreement.identity_card import Card, card_from_tree, check_address
from topdp.base import toml_text
from topdp.base.files import write_atomically
from topdp.errors import InputError, TrustError
from topdp.runs import config as configurations
from topdp.runs.config import RunConfig, Section, did_you_mean
from topdp.topology import Topology, TopologyError, from_edges

MANIFEST_FORMAT = 1
MANIFEST_KEYS = ("format", "hash", "rules", "agents", "links", "run")
OPTIONAL_MANIFEST_KEYS = ("amends",)  # where it takes the place of another one: `amendments.py`
SIGNATURES_KEY = "signatures"  # beside the document: its hash is what is signed


class ManifestError(InputError):
    """A manifest that cannot be used; one that was changed since it was agreed to is a TrustError."""


class Rules(Section):
    """What all agents have agreed to beside the run itself."""

    dead_neighbour: Literal["wait", "go-on"] = "wait"
    """A neighbour from whom nothing comes for `idle_timeout`: wait for it, or mix what arrived.

    Where agents share noise, to go on is final: nothing more is taken of that neighbour.
    """

    departures: Annotated[int, Field(ge=0)] = 0
    """Agents that may drop out, or be refused by others, while the charges of all hold: the reserve.

    Under `adaptive`, where rows are hidden from some: who is gone counts as one more colluder, so noise is
    calibrated, and charged, for `privacy.colluders` and so many more.
    """

    idle_timeout: Annotated[float, Field(ge=0.05, le=3600, allow_inf_nan=False)] = 30.0
    """Seconds without progress on a link, or in an exchange, until it is given up.

    A link must carry a few pieces of 256 KiB in this time: at 30 s, 100 kB/s are enough for full links.
    """

    largest_body: Annotated[int, Field(ge=1024, le=2**31)] = 64 * 2**20
    """Bytes of one message."""

    in_flight: Annotated[int, Field(ge=1, le=256)] = 4
    """Requests under way in one direction of a link; a link's memory stays below 4 · this · largest_body."""

    dtype: Literal["auto", "float32", "float64"] = "auto"
    """The type in which rows travel; gradients are summed in float64 in any case.

    `auto`: float64 where the guarantee counts on rows that some do not see, which must not be rounded then,
    and the model's type elsewhere.
    """

    largest_norm: Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)] = 1e4
    """Rows above this norm are refused. What may be sent must stay finite when it is squared and added."""

    largest_drift: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Rows so many times as far from one's own as the median neighbour's are left out; 0: no limit.

    From 3 on honest rows hardly ever are. It takes three neighbours to tell who is far away.
    """

    relay: Annotated[str, AfterValidator(check_address)] = ""
    """Where neighbours meet of whom neither has an address: `host:port` of a `topdp relay`, or nothing."""

    @property
    def tolerates_silence(self) -> bool:
        """Whether agents go on without a silent neighbour."""
        return self.dead_neighbour == "go-on"


@dataclass(frozen=True)
class Manifest:
    """Cards in the order of agent numbers 0 .. n-1, links as pairs of numbers i < j."""

    cards: tuple[Card, ...]
    links: tuple[tuple[int, int], ...]
    config: RunConfig
    rules: Rules
    tree: dict[str, Any]  # the document without its hash: later versions of topdp must hash what is written
    signatures: dict[str, str] = field(default_factory=dict)  # of an amendment, by name

    def __post_init__(self) -> None:
        if len(set(self.links)) != len(self.links):
            twice_linked = next(link for link, count in Counter(self.links).items() if count > 1)
            raise ManifestError(f"Expected every link once, got {self._words(twice_linked)} twice.")
        for link in self.links:
            if not any(self.cards[end].address for end in link) and not self.rules.relay:
                raise ManifestError(
                    f"Expected an address at one end of the link {self._words(link)}, got none: neither can "
                    f"dial the other; open a port at one of them, or name a relay (--relay)."
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
        """The agent's number in plans."""
        if name not in self.names:
            raise ManifestError(
                f"Expected an agent of the manifest, got {name!r}.{did_you_mean(name, [*self.names])}"
            )
        return self.names.index(name)

    def card(self, name: str) -> Card:
        return self.cards[self.number(name)]

    def neighbours(self, name: str) -> tuple[str, ...]:
        me = self.number(name)
        return tuple(other for k, other in enumerate(self.names) if self.topology.adjacency[me, k])

    def dialer(self, first: str, second: str) -> str:
        """Which end of a link dials: the one with the lower number, unless only one can be dialled."""
        low, high = sorted((first, second), key=self.number)
        return low if self.card(high).address else high

    def relayed(self, first: str, second: str) -> bool:
        """Whether two neighbours meet at the relay: neither can be dialled."""
        return not (self.card(first).address or self.card(second).address)

    def to_toml(self) -> str:
        head = {"format": self.tree["format"], "hash": self.hash}
        signed = {SIGNATURES_KEY: self.signatures} if self.signatures else {}
        return tomli_w.dumps({**head, **self.tree, **signed}, multiline_strings=True)

    def signed_by(self, name: str, signature: str) -> Manifest:
        return replace(self, signatures={**self.signatures, name: signature})

    def write(self, path: Path) -> None:
        """Whole or not at all; an existing file is replaced."""
        write_atomically(path, self.to_toml())

    def _words(self, link: tuple[int, int]) -> str:
        return " - ".join(self.names[end] for end in link)


def new_manifest(
    cards: Iterable[Card], links: Iterable[tuple[str, str]], config: RunConfig, rules: Rules | None = None
) -> Manifest:
    """The manifest of these agents. Links are pairs of names; one that is given both ways is one link."""
    cards = tuple(cards)
    names = _names(cards)
    pairs = {tuple(sorted((_number(names, a), _number(names, b)))) for a, b in links}
    tree = {
        "format": MANIFEST_FORMAT,
        "rules": (rules or Rules()).model_dump(),
        "links": [[names[i], names[j]] for i, j in sorted(pairs)],
        "agents": [card.to_tree() for card in cards],
        "run": config.model_dump(exclude_none=True),
    }
    return _from_tree(tree, "manifest")


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file, checked whole."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors write a mark first
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", error)
        raise ManifestError(f"Expected a readable manifest, could not read {path}: {why}.") from None
    return parse_manifest(text, str(path))


def parse_manifest(text: str, origin: str = "manifest") -> Manifest:
    """The manifest in a text whose hash is the one it states."""
    try:
        tree = toml_text.parse_toml(text)
    except ValueError as error:
        raise ManifestError(f"Expected a manifest (TOML) in {origin}: {error}") from None
    stated, signatures = tree.pop("hash", None), tree.pop(SIGNATURES_KEY, {})
    texts = isinstance(signatures, dict) and all(isinstance(text, str) for text in signatures.values())
    if not texts:
        raise ManifestError(f"{origin}: {SIGNATURES_KEY}: expected names and what they have signed.")
    try:
        found = _hash(tree)
    except (TypeError, ValueError):
        raise ManifestError(f"{origin}: expected texts, numbers and lists only, got another kind.") from None
    if stated != found:
        raise TrustError(
            f"{origin}: expected the hash {found}, the file states {stated!r:.80}: it is damaged or was "
            f"changed; get it again, or make a new one with `topdp federation create`."
        )
    return replace(_from_tree(tree, origin), signatures=signatures)


def as_amendment(manifest: Manifest, amends: dict[str, Any]) -> Manifest:
    """The same manifest as one that takes the place of another."""
    return _from_tree({**manifest.tree, "amends": amends}, "amendment")


def _from_tree(tree: dict[str, Any], origin: str) -> Manifest:
    try:
        if tree.get("format") != MANIFEST_FORMAT:
            raise ManifestError(f"expected format = {MANIFEST_FORMAT}, got {tree.get('format')!r:.80}.")
        unknown = sorted(set(tree) - {*MANIFEST_KEYS, *OPTIONAL_MANIFEST_KEYS})
        if unknown:
            raise ManifestError(f"{unknown[0]}: no such key.{did_you_mean(unknown[0], [*MANIFEST_KEYS])}")
        missing = sorted(set(MANIFEST_KEYS) - set(tree) - {"hash"})
        if missing:
            raise ManifestError(f"expected {missing[0]!r}, found none.")
        listed = tree["agents"]
        if not isinstance(listed, list):
            raise ManifestError("agents: expected a list of cards.")
        cards = tuple(card_from_tree(entry, f"agents[{k}]") for k, entry in enumerate(listed))
        names = _names(cards)
        links = tuple(_link(names, entry) for entry in _expect_list(tree["links"]))
        if not isinstance(tree["run"], dict):
            raise ManifestError("run: expected a configuration.")
        return Manifest(
            cards, links, configurations.parse_stored(tree["run"], "run"), parse_rules(tree["rules"]), tree
        )
    except TrustError as error:
        raise TrustError(f"{origin}: {error}") from None
    except InputError as error:
        raise ManifestError(f"{origin}: {error}") from None


def _names(cards: tuple[Card, ...]) -> list[str]:
    """The agents' names, once it is clear that no two cards are of the same agent."""
    for what, values in (
        ("name", [card.name for card in cards]),
        ("fingerprint", [card.fingerprint for card in cards]),
        ("address", [card.address for card in cards if card.address]),
    ):
        for value, count in Counter(values).items():
            if count > 1:
                raise ManifestError(f"agents: expected every {what} once, got {value!r} {count} times.")
    return [card.name for card in cards]


def parse_rules(tree: Any) -> Rules:
    """Rules from their keys, or a refusal that names the key."""
    try:
        return Rules.model_validate(tree)
    except ValidationError as error:
        fault = error.errors()[0]
        key = ".".join(["rules", *(str(part) for part in fault["loc"])])
        if fault["type"] == "extra_forbidden":
            raise ManifestError(
                f"{key}: no such key.{did_you_mean(key[6:], list(Rules.model_fields))}"
            ) from None
        raise ManifestError(f"{key}: {fault['msg']}, got {fault['input']!r:.80}.") from None


def _link(names: list[str], entry: Any) -> tuple[int, int]:
    if not isinstance(entry, list) or len(entry) != 2:
        raise ManifestError(f"links: expected pairs of names, got {entry!r:.80}.")
    i, j = _number(names, entry[0]), _number(names, entry[1])
    return (i, j) if i < j else (j, i)


def _number(names: list[str], name: Any) -> int:
    if name not in names:
        raise ManifestError(
            f"links: expected the name of a card, got {name!r:.80}.{did_you_mean(str(name), names)}"
        )
    return names.index(name)


def _expect_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ManifestError("links: expected a list of pairs of names.")
    return value


def _hash(tree: dict[str, Any]) -> str:
    """Over sorted JSON, so that order, comments and blanks of the file do not matter."""
    text = json.dumps(tree, sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(b"topdp manifest\n" + text.encode("ascii")).hexdigest()
