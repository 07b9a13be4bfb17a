"""Tests of manifests: they are read back with the same hash, and invalid content is refused by name."""

import re
import tomllib

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from topdp import topology
from topdp.agents.agreement import manifest as manifests
from topdp.agents.agreement.identity import generate
from topdp.agents.agreement.identity_card import Card
from topdp.agents.agreement.manifest import (
    Manifest,
    ManifestError,
    Rules,
    new_manifest,
    parse_manifest,
    read_manifest,
)
from topdp.errors import InputError, TrustError
from topdp.runs.config import RunConfig

IDENTITIES = [generate(name, f"127.0.0.1:{7400 + k}") for k, name in enumerate(["ant", "bee", "cat", "dog"])]
CARDS = [one.card for one in IDENTITIES]
RING = [("ant", "bee"), ("bee", "cat"), ("cat", "dog"), ("dog", "ant")]


def ring(**changes):
    return new_manifest(CARDS, RING, RunConfig(rounds=7), Rules(**changes))


def signed(tree):
    """A document as a member could write it: with a matching hash."""
    tree = {key: value for key, value in tree.items() if key != "hash"}
    return tomli_w.dumps({**tree, "hash": manifests._hash(tree)})


def changed(change):
    tree = tomllib.loads(ring().to_toml())
    change(tree)
    return signed(tree)


def test_a_manifest_is_read_back_as_it_was_written(tmp_path):
    first = ring(dead_neighbour="go-on", idle_timeout=2.5)
    first.write(tmp_path / "manifest.toml")
    again = read_manifest(tmp_path / "manifest.toml")
    assert again == first and again.hash == first.hash and re.fullmatch("[0-9a-f]{64}", again.hash)
    assert again.config == RunConfig(rounds=7) and again.rules.dead_neighbour == "go-on"
    assert again.cards == tuple(CARDS)
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.toml"]


def test_numbers_follow_the_cards_and_the_graph_follows_the_links():
    m = ring()
    assert [m.number(name) for name in m.names] == [0, 1, 2, 3]
    assert (m.topology.adjacency == topology.ring(4).adjacency).all()
    assert m.topology.labels == ("ant", "bee", "cat", "dog")
    assert m.neighbours("ant") == ("bee", "dog") and m.card("cat") == CARDS[2]
    with pytest.raises(ManifestError, match="Did you mean 'cat'"):
        m.number("cats")


def test_one_rule_decides_who_dials():
    m = ring()
    assert m.dialer("ant", "bee") == m.dialer("bee", "ant") == "ant"
    closed = Card("bee", "", CARDS[1].certificate)
    m = new_manifest([CARDS[0], closed], [("bee", "ant")], RunConfig())
    assert m.dialer("ant", "bee") == m.dialer("bee", "ant") == "bee"


def test_a_link_between_two_sites_without_addresses_is_refused():
    closed = [Card(card.name, "", card.certificate) for card in CARDS[:2]]
    with pytest.raises(ManifestError, match="ant - bee"):
        new_manifest(closed, [("ant", "bee")], RunConfig())


def test_the_hash_depends_on_the_content_and_not_on_the_order_of_links():
    assert ring().hash == ring().hash
    same = new_manifest(CARDS, [("bee", "ant"), *RING[1:], RING[0]], RunConfig(rounds=7), Rules())
    assert same.hash == ring().hash
    others = [
        ring(idle_timeout=29.0),
        new_manifest(CARDS, RING, RunConfig(rounds=8)),
        new_manifest(CARDS, RING[1:], RunConfig(rounds=7)),
        new_manifest([generate("ant", "127.0.0.1:7400").card, *CARDS[1:]], RING, RunConfig(rounds=7)),
        new_manifest([CARDS[1], CARDS[0], *CARDS[2:]], RING, RunConfig(rounds=7)),
    ]
    assert len({ring().hash, *(m.hash for m in others)}) == 1 + len(others)


def test_the_hash_ignores_layout_and_comments():
    text = "# for all sites\n\n" + ring().to_toml()
    assert parse_manifest(text).hash == ring().hash


def test_a_document_that_does_not_match_its_hash_is_refused():
    text = ring().to_toml()
    for old, new in [("rounds = 7", "rounds = 8"), ("wait", "go-on"), ("7401", "7409"), ("hash =", "hush =")]:
        assert old in text
        with pytest.raises(TrustError, match="expected the hash"):
            parse_manifest(text.replace(old, new, 1))


@settings(max_examples=60)
@given(st.data())
def test_a_damaged_document_is_refused_or_has_the_same_hash(data):
    text = ring().to_toml()
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.sampled_from(["", "x", "0", '"', "\n", "[", "\x00"])) + text[at + 1 :]
    try:
        found = parse_manifest(damaged)
    except (ManifestError, TrustError):
        return
    assert found.hash == ring().hash


def copy_card(tree):
    tree["agents"][1] = dict(tree["agents"][0])


def same_certificate(tree):
    tree["agents"][1] |= {key: tree["agents"][0][key] for key in ("certificate", "fingerprint")}


def same_address(tree):
    tree["agents"][1]["address"] = tree["agents"][0]["address"]


CHANGES = {
    "unknown key": (lambda t: t.update(rule={}), "rule: no such key. Did you mean 'rules'"),
    "unknown rule": (lambda t: t["rules"].update(idle_timeouts=1.0), "Did you mean 'idle_timeout'"),
    "unknown card key": (lambda t: t["agents"][0].update(key="x"), "expected a card"),
    "unknown run key": (lambda t: t["run"].update(round=1), "Did you mean 'rounds'"),
    "bad rule": (lambda t: t["rules"].update(dead_neighbour="ignore"), "rules.dead_neighbour"),
    "no timeout": (lambda t: t["rules"].update(idle_timeout=0.0), "rules.idle_timeout"),
    "other format": (lambda t: t.update(format=2), "format"),
    "no links key": (lambda t: t.pop("links"), "links: Field required"),
    "no links": (lambda t: t.update(links=[]), "links"),
    "links of another kind": (lambda t: t.update(links=3), "links: Input should be a valid list"),
    "stranger": (
        lambda t: t["links"].append(["ant", "ape"]),
        "links: expected the name of an agent in the manifest, got 'ape'",
    ),
    "three ends": (lambda t: t["links"].append(["ant", "bee", "cat"]), "links.4: List should have at most 2"),
    "nested ends": (lambda t: t["links"].append([["ant"], "bee"]), "links.4.0: Input should be a valid str"),
    "self loop": (lambda t: t["links"].append(["ant", "ant"]), "self loops"),
    "link twice": (lambda t: t["links"].append(["bee", "ant"]), "every link once, got ant - bee"),
    "unconnected": (lambda t: t.update(links=t["links"][:1]), "connected graph"),
    "card twice": (copy_card, "every name once"),
    "certificate twice": (same_certificate, "every fingerprint once"),
    "address twice": (same_address, "every address once"),
    "other fingerprint": (lambda t: t["agents"][0].update(fingerprint="0" * 64), "fingerprint"),
    "agents of another kind": (lambda t: t.update(agents={"a": 1}), "agents: Input should be a valid list"),
    "run of another kind": (lambda t: t.update(run=1), "run: Input should be a valid dict"),
    "not finite": (lambda t: t["rules"].update(largest_norm=1e999), "kind"),
    "a norm whose square is not": (lambda t: t["rules"].update(largest_norm=1e20), "largest_norm"),
    "one agent": (lambda t: t.update(agents=t["agents"][:1], links=[]), "links"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_invalid_content_is_refused_by_name(case):
    change, words = CHANGES[case]
    if case == "not finite":
        tree = tomllib.loads(ring().to_toml())
        change(tree)
        text = tomli_w.dumps(tree)
    else:
        text = changed(change)
    kind = TrustError if words == "fingerprint" else ManifestError
    with pytest.raises(kind, match=re.escape(words)):
        parse_manifest(text)


def test_a_missing_or_unreadable_file_is_named(tmp_path):
    with pytest.raises(InputError, match=re.escape("none.toml")):
        read_manifest(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=re.escape("bytes.toml")):
        read_manifest(tmp_path / "bytes.toml")
    (tmp_path / "words.toml").write_text("no = = toml")
    with pytest.raises(ManifestError, match=re.escape("words.toml")):
        read_manifest(tmp_path / "words.toml")


def test_a_manifest_contains_no_private_key():
    assert "PRIVATE" not in ring().to_toml()
    assert isinstance(ring(), Manifest)
