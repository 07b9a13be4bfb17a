"""Tests of malicious peers: each attack is refused, logged once with the name, and disturbs no honest peer.

ant attacks, bee is attacked, cat is honest. ant is a neighbour in the manifest unless a test states
otherwise. Where a single check prevents an attack, the test also removes that check and sees the attack
succeed. So the check is what prevents it, and the test can fail.
"""

import asyncio
import contextlib
import gc
import hashlib
import logging
import subprocess
import sys
import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from safetensors.numpy import save
from sites import CLAIM, MADE, Echo, Federation, at, run, until_answered

from topdp.agents.agreement.identity import TLS_HOST_NAME, Identity, generate
from topdp.agents.agreement.identity_card import Card
from topdp.agents.agreement.manifest import Rules
from topdp.agents.wire import grpc_channels, handshake, row_payload
from topdp.agents.wire import wire_pb2 as wire
from topdp.agents.wire.grpc_channels import (
    METHOD_NAME,
    SERVICE_NAME,
    AcceptedStream,
    DialledStream,
    aio,
    grpc,
)
from topdp.agents.wire.handshake import FrameStream, HandshakeParty
from topdp.agents.wire.link_bodies import PIECE_BYTES
from topdp.agents.wire.link_limits import PendingRequests
from topdp.agents.wire.link_refusals import LinkEnded, RefusalLog
from topdp.agents.wire.links import Link
from topdp.agents.wire.transport import Message, MessageKind, Reply, ReplyCode, Unreachable

LISTENS = ("ant", "cat", "bee")  # bee has the highest number: both dial it
DIALS = ("bee", "ant", "cat")  # bee has the lowest: it dials both
LARGEST = 2**20
ROW = Message.of(MessageKind.ROW, 1, b"honest")
REFUSED = LinkEnded  # a peer that writes while it is refused may get INTERNAL in place of the reason


def federation(names=LISTENS, **settings):
    links = [("ant", "bee"), ("cat", "bee")]
    return Federation(names, links=links, **{"largest_body": LARGEST, "idle_timeout": 5.0, **settings})


def certificate(name, key, signer, ca=None):
    """A certificate that a malicious site could make: any name, no limits on use. `signer`: (name, key)."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, signer[0])]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=9))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_HOST_NAME)]), critical=False)
    )
    if ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    return builder.sign(signer[1], hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def identity(name, signer=None, ca=None):
    key = ec.generate_private_key(ec.SECP256R1())
    return Identity(Card(name, "", certificate(name, key, signer or (name, key), ca)), key)


class RowMonitor:
    """An attacked bee and an honest cat that exchange requests all the time; fails if they are disturbed."""

    def __init__(self, fed, bee_handler=None, **options):
        self.federation, self.handler, self.options = fed, bee_handler, options
        self.exchanges = 0

    async def __aenter__(self):
        self.bee, self.cat = (self.federation.transport(name, **self.options) for name in ("bee", "cat"))
        self.seen = Echo("bee")
        await self.bee.start(self.handler or self.seen)
        await self.cat.start(Echo("cat"))
        await until_answered(self.cat, "bee", ROW)
        self.honest = asyncio.create_task(self._exchange())
        return self

    async def _exchange(self):
        while True:
            assert (await self.cat.request("bee", ROW)).ok
            assert (await self.bee.request("cat", ROW)).ok
            self.exchanges += 1
            await asyncio.sleep(0.005)

    async def __aexit__(self, error, *_):
        try:
            target = self.exchanges + 2
            while error is None and self.exchanges < target:
                if self.honest.done():
                    self.honest.result()
                await asyncio.sleep(0.005)
        finally:
            self.honest.cancel()
            await asyncio.gather(self.honest, return_exceptions=True)
            await asyncio.gather(self.bee.close(), self.cat.close())

    @property
    def from_others(self):
        return [one for one in self.seen.seen if one[0] != "cat"]


@contextlib.asynccontextmanager
async def call_to(fed, identity, plain=False, compression=None):
    """A raw stream to bee, with any certificate."""
    card = fed.manifest.card("bee")
    options = [("grpc.ssl_target_name_override", TLS_HOST_NAME), ("grpc.use_local_subchannel_pool", 1)]
    if plain:
        channel = aio.insecure_channel(card.address, options=options[1:])
    else:
        pem = identity.card.certificate.encode()
        credentials = grpc.ssl_channel_credentials(card.certificate.encode(), identity.key_pem(), pem)
        channel = aio.secure_channel(card.address, credentials, options=options)
    claim = [(CLAIM, identity.card.name)] if plain else None
    call = channel.stream_stream(f"/{SERVICE_NAME}/{METHOD_NAME}")(compression=compression, metadata=claim)
    try:
        yield call
    finally:
        call.cancel()
        await channel.close()


@contextlib.asynccontextmanager
async def ant_in(fed, plain=False, compression=None):
    """A link that ant has opened correctly; ant may now send anything over it."""
    async with call_to(fed, fed.identities["ant"], plain, compression) as call:
        party = HandshakeParty(fed.identities["ant"], fed.manifest.hash)
        await handshake.dial(DialledStream(call), party, fed.manifest.card("bee"))
        yield call


def claiming(card, key):
    """An identity that claims to be `card`, but signs with another key."""
    liar = Identity(MADE["ant"].card, MADE["ant"].key)
    object.__setattr__(liar, "card", card)
    object.__setattr__(liar, "key", key)
    return liar


async def try_link(fed, who, plain=False, leaf=None):
    """Opens a link to bee as `who`, over TLS with `leaf`, and sends a request if the link is accepted."""
    async with call_to(fed, leaf or who, plain) as call:
        stream = DialledStream(call)
        await handshake.dial(stream, HandshakeParty(who, fed.manifest.hash), fed.manifest.card("bee"))
        await stream.write(request(1, b"evil"))
        while (frame := await stream.read()) is not None:
            if frame.WhichOneof("content") == "response":
                return frame.response
        return None


async def ended(call):
    """Reads until the other end ends the stream, and returns the error."""
    stream = DialledStream(call)
    try:
        while (frame := await stream.read()) is not None:
            assert frame.WhichOneof("content") != "response" or frame.response.code == ReplyCode.DAMAGED
    except LinkEnded as error:
        return error
    return None


def request(number, body, size=None, digest=None, kind="ROW", data=None):
    return wire.Frame(
        request=wire.Request(
            id=number,
            kind=kind,
            digest=hashlib.sha256(body).digest() if digest is None else digest,
            size=len(body) if size is None else size,
            data=body[:PIECE_BYTES] if data is None else data,
        )
    )


def chunk(number, data, answer=False):
    return wire.Frame(chunk=wire.Chunk(id=number, answer=answer, data=data))


def logged(caplog, agent="bee", level=logging.WARNING):
    """What an agent has logged about its peers: (peer, kind), once per line."""
    return [
        (record.peer, record.event)
        for record in caplog.records
        if getattr(record, "agent", "") == agent and record.levelno >= level
    ]


# Who is let in.


STRANGERS = {
    "a stranger": lambda: generate("eve"),
    "a name of the manifest with another key": lambda: generate("ant"),
    "an honest neighbour's name with another key": lambda: generate("cat"),
}


@pytest.mark.parametrize("case", STRANGERS)
def test_agents_outside_the_manifest_fail_the_tls_handshake(case):
    async def body():
        async with RowMonitor(federation()) as watch:
            for _ in range(3):
                with pytest.raises(LinkEnded, match=r"^lost: "):
                    await try_link(watch.federation, STRANGERS[case]())
            assert not watch.from_others

    run(body())


def test_a_plaintext_client_gets_nothing():
    async def body():
        async with RowMonitor(federation()) as watch:
            with pytest.raises(LinkEnded, match=r"^lost: "):
                await try_link(watch.federation, MADE["ant"], plain=True)
            assert not watch.from_others

    run(body())


def test_a_plaintext_server_gets_no_frame(caplog):
    """bee dials ant's address, where a server answers without TLS."""

    async def body():
        fed = federation(DIALS)
        async with Server(fed, None) as server, RowMonitor(fed) as watch:
            await server.attempt.wait()
            assert watch.bee._peers["ant"].link is None and server.frames == []

    run(body())


@pytest.mark.parametrize("ca", [None, False, True])
def test_a_forged_leaf_of_a_neighbour_is_refused_by_the_listener(caplog, monkeypatch, ca):
    """ant, whom bee pins, signs a certificate in the name of cat. gRPC accepts it; bee must not."""
    ant = identity("ant", ca=ca)
    leaf = identity("cat", signer=("ant", ant.key))

    async def body():
        fed = federation(identities={"ant": ant})
        forged = claiming(fed.manifest.card("cat"), leaf.key)
        async with RowMonitor(fed) as watch:
            for _ in range(2):
                with pytest.raises(REFUSED):
                    await try_link(fed, forged, leaf=leaf)
            assert not watch.from_others
            assert logged(caplog) == [("ant", "forged")]

            # Without the comparison of fingerprints, the signature still prevents the attack ...
            monkeypatch.setattr(handshake, "card_of_leaf", by_common_name)
            with pytest.raises(LinkEnded, match="does not hold the key of cat"):
                await try_link(fed, forged, leaf=leaf)
            # ... and without both checks the attack succeeds: TLS itself accepts the certificate.
            monkeypatch.setattr(handshake, "check_signature", lambda *_: None)
            watch.honest.cancel()
            watch.seen.seen.clear()
            await watch.cat.close()
            assert (await try_link(fed, forged, leaf=leaf)).words == "bee heard cat"
            raise Succeeded

    with pytest.raises(Succeeded):
        run(body())


class Succeeded(Exception):  # noqa: N818 - of an attack, once its check is gone
    pass


def by_common_name(pem, cards):
    """What a naive server does: it believes the name in the certificate."""
    subject = x509.load_pem_x509_certificate(pem).subject
    name = subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    return next(card for card in cards.values() if card.name == name)


def test_a_forged_leaf_is_refused_by_the_dialer(caplog, monkeypatch):
    """bee dials ant; a server answers with a certificate that ant's key has signed for another key."""
    ant = identity("ant")
    forged = identity("ant", signer=("ant-issuer", ant.key))
    ant = Identity(Card("ant", "", certificate("ant-issuer", ant.key, ("ant-issuer", ant.key))), ant.key)

    async def body():
        fed = federation(DIALS, identities={"ant": ant})
        async with Server(fed, forged) as server, RowMonitor(fed) as watch:
            await server.attempt.wait()
            await server.refused.wait()
            assert server.frames and watch.bee._peers["ant"].link is None  # TLS let it through
            while ("ant", "signature") not in logged(caplog):
                await asyncio.sleep(0.005)

            monkeypatch.setattr(handshake, "check_signature", lambda *_: None)
            assert (await until_answered(watch.bee, "ant", ROW)).reason == "evil"

    run(body())
    assert logged(caplog).count(("ant", "signature")) == 1


def test_another_neighbours_forged_leaf_is_refused_by_the_dialer(caplog, monkeypatch):
    """bee dials ant; a server answers with a certificate in ant's name that cat's key has signed."""
    cat = identity("cat")
    forged = identity("ant", signer=("cat", cat.key))

    async def body():
        fed = federation(DIALS, identities={"cat": cat})
        async with Server(fed, forged) as server, RowMonitor(fed) as watch:
            while ("ant", "lost") not in logged(caplog, level=logging.INFO):
                await asyncio.sleep(0.005)
            assert server.frames == []  # TLS stops it: bee trusts one certificate when it dials, not all

            every = "".join(card.certificate for card in fed.manifest.cards).encode()
            monkeypatch.setattr(grpc_channels, "trusted_certificates", lambda _: every)
            while ("ant", "signature") not in logged(caplog):
                await asyncio.sleep(0.005)
            assert server.frames and watch.bee._peers["ant"].link is None

            monkeypatch.setattr(handshake, "check_signature", lambda *_: None)
            assert (await until_answered(watch.bee, "ant", ROW)).reason == "evil"

    caplog.set_level(logging.INFO, "topdp.agents")
    run(body())


def expired():
    return generate("ant", start=datetime.now(UTC) - timedelta(days=30), validity=timedelta(days=29))


def test_an_expired_certificate_is_refused(caplog, monkeypatch):
    ant = expired()

    async def over_tls():
        fed = federation(identities={"ant": ant})
        async with RowMonitor(fed) as watch:
            with pytest.raises(LinkEnded, match=r"^lost: "):
                await try_link(fed, fed.identities["ant"])
            assert not watch.from_others

    async def in_code():
        fed = federation(identities={"ant": ant})
        async with RowMonitor(fed, plain=True) as watch:
            for _ in range(2):
                with pytest.raises(LinkEnded, match="valid from"):
                    await tries_expired(fed)
            assert not watch.from_others and logged(caplog) == [("ant", "expired")]
            monkeypatch.setattr(handshake, "check_validity", lambda *_: None)
            assert (await tries_expired(fed)).code == ReplyCode.OK

    async def tries_expired(fed):
        return await try_link(fed, fed.identities["ant"], plain=True)

    run(over_tls())
    run(in_code())


def test_an_expired_listener_is_not_dialled(caplog):
    async def body():
        fed = federation(DIALS, identities={"ant": expired()})
        async with Server(fed, fed.identities["ant"]) as server, RowMonitor(fed):
            while ("ant", "expired") not in logged(caplog):
                await asyncio.sleep(0.005)
            assert server.frames == []

    run(body())


HELLOS = {
    "another receiver": ({"receiver": "cat"}, "name"),
    "another federation": ({"federation": bytes(32)}, "manifest"),
    "no federation": ({"federation": b""}, "manifest"),
    "another version": ({"version": 1}, "version"),
    "short nonce": ({"nonce": b"x"}, "protocol"),
}


@pytest.mark.parametrize("case", HELLOS)
def test_an_invalid_hello_is_refused(case, caplog):
    change, kind = HELLOS[case]

    async def body():
        fed = federation()
        async with RowMonitor(fed), call_to(fed, fed.identities["ant"]) as call:
            frame = HandshakeParty(fed.identities["ant"], fed.manifest.hash).hello("bee", bytes(32))
            for key, value in change.items():
                setattr(frame.hello, key, value)
            await DialledStream(call).write(frame)
            assert isinstance(await ended(call), LinkEnded)

    run(body())
    assert logged(caplog) == [("ant", kind)]


def test_a_request_instead_of_a_hello_is_refused(caplog):
    async def body():
        fed = federation()
        async with RowMonitor(fed) as watch, call_to(fed, fed.identities["ant"]) as call:
            await DialledStream(call).write(request(1, b"x"))
            assert isinstance(await ended(call), LinkEnded) and not watch.from_others

    run(body())
    assert logged(caplog) == [("ant", "protocol")]


def test_a_neighbour_that_an_agent_dials_may_not_dial_it():
    """One rule decides who dials, so two agents never have a second link."""

    async def body():
        fed = Federation(("ant", "bee", "cat"), links=[("ant", "bee"), ("cat", "bee")], largest_body=LARGEST)
        async with RowMonitor(fed):
            with pytest.raises(LinkEnded, match=r"^lost: "):
                await try_link(fed, fed.identities["cat"])

    run(body())


def test_a_neighbour_cannot_take_anothers_name(caplog):
    async def body():
        fed = federation()
        async with RowMonitor(fed) as watch:
            for _ in range(2):
                async with call_to(fed, fed.identities["ant"]) as call:
                    frame = HandshakeParty(fed.identities["ant"], fed.manifest.hash).hello("bee", bytes(32))
                    frame.hello.sender = "cat"
                    await DialledStream(call).write(frame)
                    assert "'cat', but is ant" in str(await ended(call))
            assert not watch.from_others

    run(body())
    assert logged(caplog) == [("ant", "name")]


def test_without_tls_a_name_needs_its_key(caplog, monkeypatch):
    """Without TLS, too, both ends sign: ant's key does not make it cat."""

    async def body():
        fed = federation()
        liar = claiming(fed.manifest.card("cat"), MADE["ant"].key)
        async with RowMonitor(fed, plain=True) as watch:
            with pytest.raises(LinkEnded, match="does not hold the key of cat"):
                await try_link(fed, liar, plain=True)
            assert not watch.from_others
            monkeypatch.setattr(handshake, "check_signature", lambda *_: None)
            watch.honest.cancel()
            assert (await try_link(fed, liar, plain=True)).words == "bee heard cat"
            raise Succeeded

    with pytest.raises(Succeeded):
        run(body())


class Recorder(FrameStream):
    def __init__(self, stream, sent):
        self.stream, self.sent = stream, sent

    async def read(self):
        return await self.stream.read()

    async def write(self, frame):
        self.sent.append(frame)
        await self.stream.write(frame)

    async def end(self):
        await self.stream.end()


def test_a_replayed_handshake_is_refused(caplog, monkeypatch):
    """An observer has recorded what ant sent when it opened a link, and sends it again, without TLS."""

    async def record(fed):
        sent = []
        async with call_to(fed, MADE["ant"], plain=True) as call:
            party = HandshakeParty(fed.identities["ant"], fed.manifest.hash)
            await handshake.dial(Recorder(DialledStream(call), sent), party, fed.manifest.card("bee"))
        return sent

    async def replay(fed, sent):
        async with call_to(fed, MADE["ant"], plain=True) as call:
            stream = DialledStream(call)
            for frame in (*sent, request(1, b"evil")):
                await stream.write(frame)
            while (frame := await stream.read()) is not None:
                if frame.WhichOneof("content") == "response":
                    return frame.response
            return None

    async def body():
        fed = federation()
        async with RowMonitor(fed, plain=True) as watch:
            sent = await record(fed)
            for _ in range(2):
                with pytest.raises(REFUSED):
                    await replay(fed, sent)
            assert not watch.from_others
            await until(lambda: ("ant", "signature") in logged(caplog))
            monkeypatch.setattr(handshake, "fresh_nonce", lambda: bytes(32))
            assert (await replay(fed, await record(fed))).words == "bee heard ant"

    run(body())
    assert logged(caplog).count(("ant", "signature")) == 1


def test_signed_handshakes_differ_by_role_federation_ends_and_nonces():
    ant, bee, cat = (MADE[name].card for name in ("ant", "bee", "cat"))
    first, second = bytes(32), bytes([1] * 32)
    kinds = [
        handshake.transcript(role, federation_hash, *ends, nonces)
        for role in ("dialer", "listener")
        for federation_hash in ("00" * 32, "11" * 32)
        for ends in ((ant, bee), (bee, ant), (ant, cat))
        for nonces in ((first, second), (second, first))
    ]
    assert len(set(kinds)) == len(kinds) and len({len(words) for words in kinds}) == 1


# What a neighbour that is let in may send.


BODY = bytes(2 * PIECE_BYTES + 100)
SENT = {
    "oversized body": ([request(1, b"", size=LARGEST + 1)], "oversized"),
    "body of 2**63 bytes": ([request(1, b"", size=2**63)], "oversized"),
    "first piece too short": ([request(1, BODY, data=b"x")], "chunk"),
    "first piece too long": ([request(1, b"x", data=b"xy")], "chunk"),
    "empty pieces": ([request(1, BODY), chunk(1, b"")], "chunk"),
    "a trickle of bytes": ([request(1, BODY), chunk(1, b"x")], "chunk"),
    "piece too long": ([request(1, BODY), chunk(1, bytes(PIECE_BYTES + 1))], "chunk"),
    "more than announced": (
        [request(1, BODY), chunk(1, bytes(PIECE_BYTES)), chunk(1, bytes(PIECE_BYTES))],
        "chunk",
    ),
    "piece of nothing": ([chunk(7, b"x")], "protocol"),
    "piece of an answer": ([chunk(1, b"x", answer=True)], "protocol"),
    "piece after the end": ([request(1, b"x", digest=bytes(32)), chunk(1, b"y")], "protocol"),
    "answer to nothing": ([wire.Frame(response=wire.Response(id=1, code="OK"))], "protocol"),
    "receipt for nothing": ([wire.Frame(received=wire.Received(id=1, pieces=1))], "protocol"),
    "same number twice": ([request(1, BODY), request(1, BODY)], "protocol"),
    "numbers left out": ([request(2, BODY)], "protocol"),
    "no kind": ([request(1, b"x", kind=0)], "protocol"),
    "unknown kind": ([request(1, b"x", kind=99)], "protocol"),
    "negative kind": ([request(1, b"x", kind=-1)], "protocol"),
    "short digest": ([request(1, b"x", digest=b"x")], "protocol"),
    "too many at once": ([request(k, BODY) for k in range(1, 6)], "flood"),
    "second hello": ([wire.Frame(hello=wire.Hello(version=2))], "protocol"),
    "second proof": ([wire.Frame(proof=wire.Proof())], "protocol"),
    "empty frame": ([wire.Frame()], "protocol"),
    "garbage": ([b"\xff" * 1000], "garbage"),
    "half a frame": ([request(1, b"some body").SerializeToString()[:-3]], "garbage"),
    "pickle": ([b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05hello\x94."], "garbage"),
}


@pytest.mark.parametrize("case", SENT)
def test_invalid_frames_end_the_link_and_are_logged_once(case, caplog):
    frames, kind = SENT[case]

    async def body():
        fed = federation(in_flight=4)
        async with RowMonitor(fed) as watch:
            for _ in range(2):
                async with ant_in(fed) as call:
                    for frame in frames:
                        await call.write(frame if isinstance(frame, bytes) else frame.SerializeToString())
                    assert isinstance(await ended(call), LinkEnded)
            assert not watch.from_others

    run(body())
    assert [one for one in logged(caplog) if one[1] != "digest"] == [("ant", kind)]


def test_a_dialling_agent_checks_the_listener_by_the_same_rules(caplog):
    """bee has dialled ant, and checks what ant sends over that link."""

    async def body():
        fed = federation(DIALS)
        frames = [request(1, b"", size=LARGEST + 1)]
        async with Server(fed, fed.identities["ant"], frames) as server, RowMonitor(fed) as watch:
            await server.refused.wait()
            while not logged(caplog):
                await asyncio.sleep(0.005)
            assert not watch.from_others

    run(body())
    assert logged(caplog) == [("ant", "oversized")]


async def cut_after(message, frames, **rules):
    """bee sends a request to ant, which answers with these frames: bee gets no reply."""
    fed = federation(**rules)
    async with RowMonitor(fed) as watch, ant_in(fed) as call:
        task = asyncio.create_task(watch.bee.request("ant", message))
        stream = DialledStream(call)
        while (await stream.read()).WhichOneof("content") != "request":
            pass
        for frame in frames:
            await stream.write(frame)
        with pytest.raises(Unreachable):
            await task


EMPTY = hashlib.sha256(b"").digest()
BAD_ANSWERS = {
    "other digest": (wire.Response(id=1, code="OK", digest=bytes(32), size=1, data=b"x"), "digest"),
    "oversized": (wire.Response(id=1, code="OK", digest=bytes(32), size=LARGEST + 1), "oversized"),
    "long words": (wire.Response(id=1, code="OK", digest=EMPTY, words="x" * 1001), "protocol"),
    "to another request": (wire.Response(id=2, code="OK", digest=EMPTY), "protocol"),
    "no code": (wire.Response(id=1, digest=EMPTY), "protocol"),
    "unknown code": (wire.Response(id=1, code=99, digest=EMPTY), "protocol"),
    "negative code": (wire.Response(id=1, code=-1, digest=EMPTY), "protocol"),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_an_invalid_reply_counts_as_no_reply(case, caplog):
    answer, kind = BAD_ANSWERS[case]
    run(cut_after(ROW, [wire.Frame(response=answer)]))
    assert logged(caplog) == [("ant", kind)]


TOO_EARLY = {
    "answer before the end": [wire.Frame(response=wire.Response(id=1, code="OK", digest=EMPTY))],
    "receipt for what was not sent": [wire.Frame(received=wire.Received(id=1, pieces=9))],
    "receipt for nothing": [wire.Frame(received=wire.Received(id=1, pieces=0))],
    "receipt twice": [wire.Frame(received=wire.Received(id=1, pieces=1))] * 2,
}


@pytest.mark.parametrize("case", TOO_EARLY)
def test_replies_and_receipts_before_the_request_is_sent_are_refused(case, caplog):
    """bee sends ten pieces, of which at most four are under way at a time."""
    run(
        cut_after(
            Message.of(MessageKind.ROW, 1, bytes(10 * PIECE_BYTES)),
            TOO_EARLY[case],
            largest_body=10 * PIECE_BYTES,
        )
    )
    assert logged(caplog) == [("ant", "protocol")]


def test_a_reply_cannot_begin_twice(caplog):
    half = wire.Response(id=1, code="OK", digest=bytes(32), size=2 * PIECE_BYTES, data=bytes(PIECE_BYTES))
    run(cut_after(ROW, [wire.Frame(response=half)] * 2))
    assert logged(caplog) == [("ant", "protocol")]


def test_a_second_link_replaces_the_first(caplog):
    """A restarted peer is served at once; a peer that opens many links keeps one."""

    async def body():
        fed = federation()
        async with RowMonitor(fed) as watch, ant_in(fed) as first:
            link = watch.bee._peers["ant"].link
            async with ant_in(fed) as second:
                assert "new link" in str(await ended(first))
                await until(lambda: watch.bee._peers["ant"].link not in (None, link))
                await DialledStream(second).write(request(1, b"x"))
                await until(lambda: watch.from_others)

    run(body())
    assert logged(caplog) == []


def test_a_body_with_another_digest_is_refused_and_logged_once(caplog):
    async def body():
        fed = federation()
        async with RowMonitor(fed) as watch, ant_in(fed) as call:
            stream = DialledStream(call)
            for number in (1, 2):
                await stream.write(request(number, b"x", digest=bytes(32)))
                while (frame := await stream.read()).WhichOneof("content") != "response":
                    pass
                assert frame.response.code == ReplyCode.DAMAGED
            assert not watch.from_others

    run(body())
    assert logged(caplog) == [("ant", "digest")]


def test_a_frame_above_a_mebibyte_ends_the_link(caplog):
    caplog.set_level(logging.INFO, "topdp.agents")

    async def body():
        fed = federation()
        async with RowMonitor(fed) as watch:
            for _ in range(2):
                async with ant_in(fed) as call:
                    with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
                        await call.write(bytes(16 * 2**20))
                    assert await ended(call) is not None
                await until(lambda: watch.bee._peers["ant"].link is None)
            assert not watch.from_others

    run(body())
    assert logged(caplog, level=logging.INFO).count(("ant", "lost")) == 1


def test_compressed_frames_are_refused():
    """64 kB could expand to 64 MiB."""

    async def body():
        fed = federation()
        async with RowMonitor(fed) as watch:
            with pytest.raises(LinkEnded, match=r"^lost: "):
                async with ant_in(fed, compression=grpc.Compression.Gzip):
                    pass
            assert not watch.from_others

    run(body())


async def until(condition):
    while not condition():
        await asyncio.sleep(0.002)


def test_a_link_that_ends_during_a_body_leaves_no_state_behind(caplog):
    caplog.set_level(logging.INFO, "topdp.agents")

    async def body():
        fed = federation()
        async with RowMonitor(fed) as watch:
            for _ in range(3):
                async with ant_in(fed) as call:
                    await call.write(request(1, BODY).SerializeToString())
                    await until(lambda: watch.bee._peers["ant"].link)
                    link = watch.bee._peers["ant"].link
                    await until(lambda link=link: link._incoming)
                await until(lambda: watch.bee._peers["ant"].link is None)
                await until(lambda link=link: not link._incoming and not link._tasks)
            assert not watch.from_others

    run(body())
    assert logged(caplog, level=logging.INFO).count(("ant", "lost")) == 1


LORIS = {
    "says nothing": ([], 0, "silent"),
    "pings, and leaves a body unfinished": ([request(1, BODY)], 1, "stalled"),
}


@pytest.mark.parametrize("case", LORIS)
def test_a_slow_loris_is_cut_after_the_idle_timeout(case, caplog):
    frames, pings, kind = LORIS[case]

    async def body():
        fed = federation(idle_timeout=0.4)
        async with RowMonitor(fed) as watch, ant_in(fed) as call:
            for frame in frames:
                await call.write(frame.SerializeToString())

            async def ping():
                while True:
                    await call.write(wire.Frame(ping=wire.Ping()).SerializeToString())
                    await asyncio.sleep(0.05)

            task = asyncio.create_task(ping()) if pings else None
            end = await ended(call)
            # A peer that writes while its link is ended may get INTERNAL as the reason; the log has it.
            assert "nothing moved" in str(end) or (pings and isinstance(end, REFUSED))
            if task:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            assert not watch.from_others

    run(body())
    assert logged(caplog) == [("ant", kind)]


def test_a_peer_that_pings_and_never_answers_or_reads_is_cut(caplog):
    """bee requests something of ant; ant keeps the link alive, but reads and answers nothing."""

    async def body():
        fed = federation(idle_timeout=0.4)
        async with RowMonitor(fed) as watch, ant_in(fed) as call:

            async def ping():
                while True:
                    await call.write(wire.Frame(ping=wire.Ping()).SerializeToString())
                    await asyncio.sleep(0.05)

            task = asyncio.create_task(ping())
            with pytest.raises(Unreachable, match="nothing moved"):
                await watch.bee.request("ant", Message.of(MessageKind.ROW, 1, bytes(LARGEST)))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    run(body())
    assert logged(caplog) == [("ant", "stalled")]


def test_links_without_a_handshake_end_after_the_idle_timeout(caplog):
    async def body():
        fed = federation(idle_timeout=0.3)
        async with RowMonitor(fed) as watch, contextlib.AsyncExitStack() as stack:
            calls = [await stack.enter_async_context(call_to(fed, fed.identities["ant"])) for _ in range(4)]
            reasons = [str(await ended(call)) for call in calls]
            assert sum("no handshake" in reason for reason in reasons) == 2
            assert sum("at a time" in reason for reason in reasons) == 2
            assert watch.bee._peers["ant"].handshakes == 0 and not watch.from_others

    run(body())
    assert sorted(logged(caplog)) == [("ant", "flood"), ("ant", "silent")]


RAW = {
    "garbage": b"\x00\xff" * 5000,
    "http": b"GET / HTTP/1.1\r\nHost: bee\r\n\r\n",
    "http2 without tls": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 200,
    "half a tls hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "nothing": b"",
}


@pytest.mark.parametrize("case", RAW)
def test_raw_bytes_on_the_port_are_dropped(case):
    """A connection on which TLS never completes is dropped after the idle timeout."""

    async def body():
        fed = federation(idle_timeout=0.4)
        async with RowMonitor(fed) as watch:
            host, port = fed.manifest.card("bee").address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(RAW[case])
            with contextlib.suppress(ConnectionError):
                await writer.drain()
                assert len(await reader.read(1000)) < 1000
                assert await reader.read() == b""  # dropped by bee
            writer.close()
            assert not watch.from_others

    run(body())


def test_strangers_cannot_fill_the_log():
    """Runs in its own process, which imports gRPC as an agent does: through our module."""
    code = """
import asyncio, logging, sys
logging.basicConfig(level=logging.INFO)
from sites import Echo, Federation, run

async def body():
    fed = Federation()
    bee = fed.transport("bee")
    await bee.start(Echo("bee"))
    host, port = fed.manifest.card("bee").address.split(":")
    for _ in range(20):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(bytes(1000))
        try:
            await reader.read()
        except ConnectionError:
            pass
        writer.close()
    await bee.close()

run(body())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stdout == ""
    said = done.stderr.splitlines()
    assert len(said) == 1 and "someone: not TLS: 127.0.0.1" in said[0]  # one line for all twenty


def test_memory_stays_bounded(caplog):
    """ant opens link after link, fills each with unfinished bodies, and requests slow work."""
    in_flight = 4

    async def body():
        fed = federation(in_flight=in_flight)
        stuck = asyncio.Event()

        async def slow(peer, message):
            if peer == "ant":
                await stuck.wait()
            return Reply(ReplyCode.OK)

        async with RowMonitor(fed, slow) as watch:
            big = bytes(LARGEST)
            gc.collect()
            tracemalloc.start()
            try:
                for _ in range(15):
                    async with ant_in(fed) as call:
                        for number in range(1, in_flight + 1):
                            await call.write(request(number, big).SerializeToString())
                            last = LARGEST // PIECE_BYTES - (0 if number <= 2 else 1)
                            for _ in range(1, last):
                                await call.write(chunk(number, big[:PIECE_BYTES]).SerializeToString())
                        link = watch.bee._peers["ant"].link
                        await until(lambda link=link: len(link._incoming) == in_flight - 2)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert (
                peak < 4 * in_flight * LARGEST
            )  # the bound that the manifest states for one link; 15 links would take 60
            assert len(watch.bee._peers["ant"].pending.running) <= in_flight
            stuck.set()

    run(body())


# Invalid rows over a link.


D = 6
BAD_ROWS = {
    "nan": (save({"row": np.full(D, np.nan, np.float32)}), "finite"),
    "inf": (save({"row": np.full(D, np.inf, np.float32)}), "finite"),
    "shape": (save({"row": np.zeros(D + 1, np.float32)}), "shape"),
    "type": (save({"row": np.zeros(D, np.float64)}), "F32"),
    "extra tensor": (save({"row": np.zeros(D, np.float32), "x": np.zeros(1, np.float32)}), "one tensor"),
    "norm": (save({"row": np.full(D, 1e9, np.float32)}), "norm"),
    "pickle": (b"\x80\x04N.", "header"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_invalid_rows_are_refused_and_the_link_stays_open(case):
    data, word = BAD_ROWS[case]

    async def body():
        fed = Federation()
        rules = fed.manifest.rules

        async def handle(peer, message):
            try:
                row_payload.decode(message.body, D, "float32", rules.largest_norm)
            except row_payload.PayloadError as error:
                return Reply(ReplyCode.NOT_A_ROW, str(error))
            return Reply(ReplyCode.OK)

        ant, bee = fed.transport("ant"), fed.transport("bee")
        try:
            await bee.start(handle)
            await ant.start(handle)
            good = Message.of(MessageKind.ROW, 1, row_payload.encode(np.ones(D, np.float32)))
            assert (await ant.request("bee", good)).ok
            reply = await ant.request("bee", Message.of(MessageKind.ROW, 2, data))
            assert not reply.ok and word in reply.reason
            assert (await ant.request("bee", good)).ok
        finally:
            await asyncio.gather(ant.close(), bee.close())

    run(body())


class Server:
    """The server at ant's address: it shows any certificate (None: no TLS), then sends any frames.

    Without frames it answers every request with `evil`.
    """

    def __init__(self, fed, identity, frames=None):
        self.federation, self.identity, self.script = fed, identity, frames
        self.frames = []
        self.attempt, self.refused = asyncio.Event(), asyncio.Event()

    async def __aenter__(self):
        address = self.federation.manifest.card("ant").address
        self.server = aio.server()
        handler = grpc.stream_stream_rpc_method_handler(self.open)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE_NAME, {METHOD_NAME: handler}),)
        )
        if self.identity is None:
            probe = await asyncio.start_server(self.plain, *address.split(":"))
            self.probe = probe
        else:
            own = (self.identity.key_pem(), self.identity.card.certificate.encode())
            roots = self.federation.manifest.card("bee").certificate.encode()
            self.server.add_secure_port(address, grpc.ssl_server_credentials([own], roots, True))
            await self.server.start()
        return self

    async def __aexit__(self, *_):
        if self.identity is None:
            self.probe.close()
            await self.probe.wait_closed()
        else:
            await self.server.stop(0)

    async def plain(self, reader, writer):
        """bee must begin with TLS; a server that answers in plain HTTP/2 must get no frame."""
        assert (await reader.read(3))[:2] == b"\x16\x03"
        writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # HTTP/2 settings
        await reader.read()
        writer.close()
        self.attempt.set()

    async def open(self, _, context):
        self.attempt.set()
        stream = Recorder(AcceptedStream(context), [])
        party = HandshakeParty(at(self.identity, ""), self.federation.manifest.hash)
        try:
            hello = await stream.read()
            self.frames.append(hello)
            peer = self.federation.manifest.card("bee")
            nonces = (hello.hello.nonce, bytes(32))
            words = handshake.transcript(
                "listener", party.federation, peer, self.federation.manifest.card("ant"), nonces
            )
            await stream.write(party.hello("bee", bytes(32), self.identity.sign(words)))
            if await stream.read() is None:
                return
            await stream.write(wire.Frame(proof=wire.Proof()))
            for frame in self.script or ():
                await stream.write(frame)
            while (frame := await stream.read()) is not None:
                if frame.WhichOneof("content") == "request":
                    digest = hashlib.sha256(b"").digest()
                    answer = wire.Response(id=frame.request.id, code="OK", words="evil", digest=digest)
                    await stream.write(wire.Frame(response=answer))
        finally:
            self.refused.set()


class Refusing(FrameStream):
    """A peer that has refused the link: gRPC reports this to the next caller, a writer or a reader."""

    async def read(self):
        await asyncio.Event().wait()

    async def write(self, frame):
        raise LinkEnded("refused", "the peer refused the link: 'no'")

    async def end(self):
        raise LinkEnded("refused", "the peer refused the link: 'no'")


def test_a_peer_that_refuses_the_link_during_a_write_is_unreachable(caplog):
    """Callers handle only `Unreachable`; any other error would end the agent."""

    async def body():
        link = Link(
            "ant",
            Refusing(),
            handle=Echo("bee"),
            rules=Rules(),
            pending=PendingRequests(4),
            refusals=RefusalLog("bee"),
        )
        serving = asyncio.create_task(link.run())
        with pytest.raises(Unreachable, match="refused the link"):
            await link.request(ROW)
        await link.finish()
        assert (await serving).kind == "refused"

    run(body())
    assert not caplog.records
