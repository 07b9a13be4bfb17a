"""Tests of new certificates and addresses while a federation runs."""

import asyncio
from dataclasses import replace

import pytest
from history import CARDS, IDENTITIES, Wire, abandon, faults, federation, live, on_virtual_time, sharing
from sites import Federation, run, until_answered

from topdp.agents.agreement import card_succession, identity
from topdp.agents.agreement.card_succession import CardDirectory, sign_successor
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.runtime.card_updates import KNOWN_TO_KEY, CardUpdates, choose_identity, restore_directory
from topdp.agents.wire.transport import Message, MessageKind, Reply, ReplyCode, Unreachable
from topdp.errors import TrustError

pytestmark = pytest.mark.usefixtures("quick")
HELLO = Message.of(MessageKind.HELLO, 0, b"")


def renewing(made, number):
    """Runs `topdp agent renew` on the site of an agent."""
    private = made.private(number)
    if not (private.folder / "key.pem").exists():
        identity.save(private.folder, private.identity)
    return card_succession.renew(private.folder)


@pytest.mark.parametrize("kind", [federation, sharing])
def test_all_agents_learn_of_a_new_card_and_the_run_continues(tmp_path, kind):
    made = kind(tmp_path)
    successor = renewing(made, 2)
    found = on_virtual_time(live(made))
    assert not faults(found) and all(result["finished"] for result in made.results())
    for number, name in enumerate(made.names):
        ledger = Ledger(made.state(number), writable=False)
        known = restore_directory(made.setup.manifest, ledger.meta)
        assert known.card(made.names[2]) == successor.card, name
        ledger.close()


def test_an_agent_shows_its_new_card_once_all_neighbours_know_it(tmp_path):
    made = federation(tmp_path)
    renewing(made, 0)
    manifest, held = made.setup.manifest, card_succession.load_identities(made.private(0).folder)
    neighbours = manifest.neighbours(made.names[0])
    assert choose_identity(manifest, held, {}) == held[0]
    assert choose_identity(manifest, held, {KNOWN_TO_KEY + neighbours[0]: "1"}).card == held[0].card
    on_virtual_time(live(made))
    ledger = Ledger(made.state(0), writable=False)
    assert {ledger.meta[KNOWN_TO_KEY + peer] for peer in neighbours} == {"1"}
    assert choose_identity(manifest, held, ledger.meta).card == held[1].card
    ledger.close()
    with pytest.raises(TrustError, match="the manifest lists"):
        choose_identity(manifest, [identity.generate(made.names[0], "a.org:1")], {})


def test_statements_of_an_agent_are_valid_under_its_new_key(tmp_path):
    """A run with pair noise begins with an agent whose new key all others learn of at the same time."""
    made = sharing(tmp_path)
    successor = renewing(made, 1)
    folder = made.private(1).folder
    made.identities = {**IDENTITIES, made.names[1]: card_succession.load_identities(folder)[1]}
    found = on_virtual_time(live(made))
    assert not faults(found) and all(result["finished"] for result in made.results())
    assert successor.number == 1


def new_card_updates(tmp_path):
    made = federation(tmp_path)
    ledger = Ledger(tmp_path / "books", made.setup.manifest.hash, made.names[0])
    return CardUpdates(made.names[0], ledger, restore_directory(made.setup.manifest, ledger.meta)), ledger


def test_an_accepted_card_is_known_after_a_restart_and_a_second_one_is_a_fork(tmp_path):
    cards, ledger = new_card_updates(tmp_path)
    name = CARDS[3].name
    new, thief = (identity.generate(name, CARDS[3].address) for _ in range(2))
    assert cards.accept(sign_successor(1, IDENTITIES[name], new).text().encode())[0] is ReplyCode.OK
    directory = restore_directory(federation(tmp_path).setup.manifest, ledger.meta)
    again = CardUpdates(CARDS[0].name, ledger, directory)
    assert again.directory.card(name) == new.card
    code, words, culprit = again.accept(sign_successor(1, IDENTITIES[name], thief).text().encode())
    assert (code, culprit) == (ReplyCode.EQUIVOCATION, name) and "two parties" in words
    assert again.directory.card(name) == new.card
    ledger.close()


def test_garbage_is_refused_as_a_card(tmp_path):
    cards, ledger = new_card_updates(tmp_path)
    for body in (b"", b"\xff\xfe", b"[]", b"x" * 10**5):
        assert cards.accept(body)[0] is ReplyCode.NOT_A_STATEMENT
    ledger.close()


def test_agents_that_forward_forged_cards_or_sign_two_successors_are_quarantined(tmp_path):
    made = federation(tmp_path)
    name, forger, forked = made.names[0], *made.setup.manifest.neighbours(made.names[0])[:2]

    async def told():
        wire = Wire()
        agent = made.agent(0, wire.transport(name))
        try:
            one, two = (identity.generate(forked, "a.org:1") for _ in range(2))
            for new in (one, two):
                body = sign_successor(1, IDENTITIES[forked], new).text().encode()
                await agent.requests.handle(forger, Message.of(MessageKind.CARD, 0, body))
            assert agent.ledger.quarantined(forked).code is ReplyCode.EQUIVOCATION
            assert agent.ledger.quarantined(forger) is None
            third = made.names[2]
            honest = sign_successor(1, IDENTITIES[third], identity.generate(third, "a.org:1"))
            forged = replace(honest, card=identity.generate(third, "evil.org:1").card).text().encode()
            await agent.requests.handle(forger, Message.of(MessageKind.CARD, 0, forged))
            assert agent.ledger.quarantined(forger).code is ReplyCode.NOT_A_STATEMENT
        finally:
            abandon(agent)

    on_virtual_time(told())


def moving(name, times):
    """So many successors of an agent's card; only the address changes."""
    before, found = IDENTITIES[name], []
    for number in range(1, times + 1):
        card = replace(before.card, address=f"a.org:{number}")
        after = identity.Identity(card, before.key)
        found.append(sign_successor(number, before, after))
        before = after
    return found


def test_an_agent_with_too_many_renewals_is_quarantined(tmp_path):
    made = federation(tmp_path)
    name, pest, other = made.names[0], *made.setup.manifest.neighbours(made.names[0])[:2]

    async def told():
        agent = made.agent(0, Wire().transport(name))
        try:
            replies = [
                await agent.requests.handle(pest, Message.of(MessageKind.CARD, 0, card.text().encode()))
                for card in moving(pest, card_succession.MAX_SUCCESSORS + 2)
            ]
            assert [reply.ok for reply in replies] == [True] * card_succession.MAX_SUCCESSORS + [False, False]
            assert "at most" in agent.ledger.quarantined(pest).words
            told = 0
            while (card := agent.peers.card_updates.next_unsent(other)) is not None:
                agent.peers.card_updates.record_reply(other, card[0], Reply(ReplyCode.OK))
                told += 1
            assert told == card_succession.MAX_SUCCESSORS
        finally:
            abandon(agent)
        abandon(made.agent(0, Wire().transport(name)))  # and starts again

    on_virtual_time(told())


def test_an_honest_agent_stays_below_the_limit_of_successors_and_warns(tmp_path, caplog):
    cards, ledger = new_card_updates(tmp_path)
    cards.folder = tmp_path / "identity"
    for card in moving(cards.name, card_succession.MAX_SUCCESSORS + 1):
        place = cards.folder / f"{card_succession.RENEWAL_FOLDER_PREFIX}{card.number}"
        place.mkdir(parents=True)
        (place / card_succession.SUCCESSOR_FILE).write_text(card.text())
    for _ in range(3):
        cards.load_renewals()
    assert cards.directory.number(cards.name) == card_succession.MAX_SUCCESSORS
    assert sum("make a new one" in record.message for record in caplog.records) == 1
    ledger.close()


@pytest.mark.slow
def test_links_take_a_new_certificate_and_then_no_longer_the_old_one():
    """Uses TLS, for agents that dial and agents that listen; the others do not restart."""
    site = Federation(("ant", "bee", "cat"))
    old = site.identities["bee"]
    new = identity.generate("bee", old.card.address)

    async def renewed():
        directories = {name: CardDirectory(site.manifest) for name in ("ant", "cat")}
        ends = [site.transport(name, directory=known) for name, known in directories.items()]
        bee = site.transport("bee")
        try:
            for end in (*ends, bee):
                await end.start(echo)
            for end in ends:
                assert (await until_answered(end, "bee", HELLO)).ok
            for known in directories.values():
                known.accept(sign_successor(1, old, new))
            for end in ends:
                assert (await until_answered(end, "bee", HELLO)).ok  # open links stay
            await bee.close()
            own = CardDirectory(site.manifest)
            own.accept(sign_successor(1, old, new))
            bee = type(bee)(new, site.manifest, directory=own)
            await bee.start(echo)
            for end in ends:
                assert (await until_answered(end, "bee", HELLO)).ok
            assert all(known.acceptable("bee") == (new.card,) for known in directories.values())
            await bee.close()
            bee = site.transport("bee")  # it has only the old key
            await bee.start(echo)
            for end in ends:
                with pytest.raises((Unreachable, TimeoutError)):
                    async with asyncio.timeout(1.5):
                        await end.request("bee", HELLO)
        finally:
            await asyncio.gather(*(end.close() for end in (*ends, bee)))

    run(renewed())


async def echo(peer, message):
    return Reply(ReplyCode.OK)
