"""New certificates and addresses: what follows a card, and what does not."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from topdp.agents.agreement import card_succession, identity
from topdp.agents.agreement.card_succession import (
    CardDirectory,
    CardForkError,
    NotASuccessorError,
    Successor,
    SuccessorOrderError,
    sign_successor,
)
from topdp.agents.agreement.identity import Identity
from topdp.agents.agreement.identity_card import Card
from topdp.agents.agreement.manifest import new_manifest
from topdp.errors import InputError, TrustError
from topdp.runs.config import RunConfig

ADA, BOB, NEW, NEWER, THIEF = (
    identity.generate(name, address)
    for name, address in [
        ("ada", "a.org:1"),
        ("bob", "b.org:1"),
        ("ada", "a.org:1"),
        ("ada", "a.org:2"),
        ("ada", "evil.org:1"),
    ]
)


@pytest.fixture
def directory():
    return CardDirectory(new_manifest([ADA.card, BOB.card], [("ada", "bob")], RunConfig()))


def test_each_card_follows_the_one_before_and_both_are_known(directory):
    assert directory.accept(sign_successor(1, ADA, NEW)) and directory.accept(sign_successor(2, NEW, NEWER))
    assert directory.card("ada") == NEWER.card and directory.number("ada") == 2
    assert directory.cards("ada") == (ADA.card, NEW.card, NEWER.card)
    assert directory.card("bob") == BOB.card and directory.number("bob") == 0


def test_a_link_may_show_the_card_before_until_it_has_shown_the_new_one(directory):
    directory.accept(sign_successor(1, ADA, NEW))
    assert directory.acceptable("ada") == (NEW.card, ADA.card)
    directory.mark_shown(ADA.card)
    assert directory.acceptable("ada") == (NEW.card, ADA.card)
    directory.mark_shown(NEW.card)
    assert directory.acceptable("ada") == (NEW.card,)
    directory.accept(sign_successor(2, NEW, NEWER))
    assert directory.acceptable("ada") == (NEWER.card, NEW.card)


def test_old_successors_that_are_repeated_do_nothing(directory):
    first, second = sign_successor(1, ADA, NEW), sign_successor(2, NEW, NEWER)
    directory.accept(first), directory.accept(second)
    assert not directory.accept(first) and not directory.accept(second)
    assert not directory.accept(
        sign_successor(1, ADA, NEW)
    )  # signed once more: another signature of the same
    assert directory.card("ada") == NEWER.card


def test_two_successors_of_one_card_are_a_fork_and_the_first_stays(directory):
    directory.accept(sign_successor(1, ADA, NEW))
    with pytest.raises(CardForkError, match="two parties"):
        directory.accept(sign_successor(1, ADA, THIEF))
    directory.accept(sign_successor(2, NEW, NEWER))
    with pytest.raises(CardForkError):
        directory.accept(sign_successor(1, ADA, THIEF))
    with pytest.raises(SuccessorOrderError):
        directory.accept(sign_successor(3, ADA, THIEF))  # of a later number, by the key that was given up
    assert directory.card("ada") == NEWER.card


@pytest.mark.parametrize(
    "forged",
    [
        sign_successor(1, BOB, THIEF),  # somebody else's key
        sign_successor(
            1, ADA, Identity(Card("bob", "b.org:1", NEW.card.certificate), NEW.key)
        ),  # of somebody else
        Successor(
            **{**vars(sign_successor(1, ADA, THIEF)), "proof": sign_successor(1, ADA, NEW).proof}
        ),  # a key it has not
        Successor(**{**vars(sign_successor(1, ADA, NEW)), "number": 2}),
        Successor(**{**vars(sign_successor(1, ADA, NEW)), "card": THIEF.card}),
        sign_successor(1, ADA, identity.generate("ada", "")),  # no address any more: who would dial?
    ],
)
def test_what_the_key_of_the_card_has_not_named_is_refused(directory, forged):
    with pytest.raises(TrustError):
        directory.accept(forged)
    assert directory.cards("ada") == (ADA.card,) and directory.cards("bob") == (BOB.card,)


def test_a_forged_rival_is_no_fork(directory):
    directory.accept(sign_successor(1, ADA, NEW))
    with pytest.raises(NotASuccessorError):
        directory.accept(sign_successor(1, BOB, THIEF))


def test_after_its_time_a_card_names_nobody(directory):
    late = datetime.now(UTC) + timedelta(days=4000)
    with pytest.raises(SuccessorOrderError, match="valid from"):
        directory.accept(sign_successor(1, ADA, NEW), late)
    directory.accept(sign_successor(1, ADA, NEW))  # in time; on the books it stays
    directory.accept(sign_successor(1, ADA, NEW), is_recorded=True)


def test_a_certificate_that_begins_before_the_one_before_is_refused_and_keeps_no_ledger_shut(directory):
    old = identity.generate("ada", "a.org:1", datetime(2000, 1, 1, tzinfo=UTC), timedelta(days=20000))
    bomb = sign_successor(1, ADA, old)
    with pytest.raises(SuccessorOrderError, match="begins earlier"):
        directory.accept(bomb)
    assert directory.number("ada") == 0
    directory.accept(
        bomb, is_recorded=True
    )  # books that have it, from before it was refused, open all the same
    assert directory.card("ada") == old.card


def test_what_is_short_only_without_its_blanks_is_refused_at_once():
    """It would be booked with them, and could not be read again."""
    parts = json.loads(sign_successor(1, ADA, NEW).text())
    bare = len(json.dumps(parts, separators=(",", ":")))
    padded = [*parts[:3], parts[3] + " " * (card_succession.MAX_SUCCESSOR_BYTES - bare), parts[4]]
    with pytest.raises(NotASuccessorError):
        Successor.read(json.dumps(padded, separators=(",", ":")))


@pytest.mark.parametrize("text", ["", "{}", "[1, 2]", "[0, '', [], '', '']", "[" * 5000, "9" * 9000])
def test_what_is_no_successor_is_refused(text):
    with pytest.raises(NotASuccessorError):
        Successor.read(text)


@pytest.mark.parametrize("number", [0, -1, 2**31, 10**30, True, 1.5, "1", None])
def test_numbers_that_cannot_be_are_refused(number):
    parts = json.loads(sign_successor(1, ADA, NEW).text())
    with pytest.raises(NotASuccessorError):
        Successor.read(json.dumps([number, *parts[1:]]))


def test_renewals_are_made_in_the_folder_of_an_identity(tmp_path):
    first = identity.create_identity(tmp_path, "ada", "a.org:1")
    renewed = card_succession.renew(tmp_path)
    moved = card_succession.renew(tmp_path, "a.org:9", keep_key=True)
    held = card_succession.load_identities(tmp_path)
    assert [one.card for one in held] == [first.card, renewed.card, moved.card]
    assert moved.card.fingerprint == renewed.card.fingerprint != first.card.fingerprint
    assert (tmp_path / "renewed-1" / "key.pem").stat().st_mode & 0o777 == 0o600
    directory = CardDirectory(new_manifest([first.card, BOB.card], [("ada", "bob")], RunConfig()))
    for successor in card_succession.load_successors(tmp_path):
        assert directory.accept(Successor.read(successor.text()))
    assert directory.card("ada").address == "a.org:9"


def test_a_renewal_that_was_broken_off_is_made_again(tmp_path):
    identity.create_identity(tmp_path, "ada", "a.org:1")
    identity.create_identity(tmp_path / "renewed-1", "ada", "a.org:1")
    assert len(card_succession.load_identities(tmp_path)) == 1
    assert card_succession.renew(tmp_path).number == 1 and len(card_succession.load_identities(tmp_path)) == 2


def test_what_cannot_be_renewed_is_refused(tmp_path):
    identity.create_identity(tmp_path, "ada", "a.org:1")
    with pytest.raises(InputError, match="nothing would change"):
        card_succession.renew(tmp_path, keep_key=True)
    with pytest.raises(InputError, match="in both"):
        card_succession.renew(tmp_path, "")
    old = identity.generate("eve", "e.org:1", datetime.now(UTC) - timedelta(days=9), timedelta(days=1))
    identity.save(tmp_path / "old", old)
    with pytest.raises(TrustError, match="valid card to renew"):
        card_succession.renew(tmp_path / "old")
