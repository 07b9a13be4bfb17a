"""Tests of identities: keys and cards are created, read back, and refused with a reason if invalid."""

import os
import shutil
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from topdp.agents.agreement import identity
from topdp.agents.agreement.identity import Identity, create_identity, generate, load_identity
from topdp.agents.agreement.identity_card import Card, IdentityError, read_card
from topdp.errors import InputError, TrustError


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "identity"
    return folder, create_identity(folder, "clinic-1", "clinic.example.org:7400")


@pytest.fixture
def copy(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "copy")


def test_an_identity_is_read_back_unchanged(made):
    folder, first = made
    again = load_identity(folder)
    assert again.card == first.card == read_card(folder / "card.toml")
    assert again.key_pem() == first.key_pem()
    assert first.card.name == "clinic-1" and first.card.address == "clinic.example.org:7400"


def test_only_the_owner_can_read_the_key_whatever_the_umask(tmp_path):
    before = os.umask(0o000)
    try:
        create_identity(tmp_path / "site", "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "site" / "key.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "site").stat().st_mode) == 0o700


def test_the_private_key_is_only_in_its_own_file(made):
    folder, own = made
    secret = own.key_pem().decode().splitlines()[1]
    for name in ("card.toml", "certificate.pem"):
        text = (folder / name).read_text()
        assert secret not in text and "PRIVATE" not in text
    assert "PRIVATE" not in repr(own) and "key" not in repr(own).replace("certificate", "")


def test_an_identity_is_never_replaced(made):
    folder, own = made
    with pytest.raises(IdentityError, match="Expected no identity"):
        create_identity(folder, "other")
    assert load_identity(folder).key_pem() == own.key_pem()


def test_fingerprint_is_the_hash_of_the_certificate(made):
    import hashlib
    import ssl

    der = ssl.PEM_cert_to_DER_cert(made[1].card.certificate)
    assert made[1].card.fingerprint == hashlib.sha256(der).hexdigest()


def test_a_signature_verifies_only_for_its_message_and_key(made):
    own, other = made[1], generate("other")
    signature = own.sign(b"words")
    assert own.card.verifies(signature, b"words")
    assert not own.card.verifies(signature, b"other words")
    assert not other.card.verifies(signature, b"words")
    assert not own.card.verifies(b"", b"words") and not own.card.verifies(b"\x30" * 70, b"words")


@pytest.mark.parametrize("missing", ["key.pem", "certificate.pem", "card.toml"])
def test_a_missing_file_is_named(copy, missing):
    (copy / missing).unlink()
    with pytest.raises(InputError, match=missing):
        load_identity(copy)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_key_that_others_can_read_is_refused(copy, mode):
    (copy / "key.pem").chmod(mode)
    with pytest.raises(TrustError, match="mode 600"):
        load_identity(copy)


def test_a_foreign_key_is_refused(copy):
    (copy / "key.pem").write_bytes(generate("clinic-1").key_pem())
    with pytest.raises(TrustError, match="got another key"):
        load_identity(copy)


def test_a_foreign_certificate_is_refused(copy):
    (copy / "certificate.pem").write_text(generate("clinic-1").card.certificate)
    with pytest.raises(TrustError, match="got another one"):
        load_identity(copy)


@pytest.mark.parametrize(
    "key",
    [ed25519.Ed25519PrivateKey.generate(), ec.generate_private_key(ec.SECP384R1())],
    ids=["kind", "curve"],
)
def test_a_key_of_another_kind_is_refused(copy, key):
    (copy / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    with pytest.raises(IdentityError, match="P-256"):
        load_identity(copy)
    (copy / "key.pem").write_bytes(b"nothing")
    with pytest.raises(IdentityError, match="private key"):
        load_identity(copy)


def test_an_expired_identity_says_so(made, tmp_path):
    own, day = made[1], timedelta(days=1)
    identity.save(tmp_path, generate("clinic-1", start=datetime.now(UTC) - 2 * day, validity=day))
    assert "valid from" in load_identity(tmp_path).card.validity_problem()
    assert own.card.validity_problem(datetime.now(UTC) - timedelta(days=2))
    assert not own.card.validity_problem()


def test_a_changed_card_is_refused(made, tmp_path):
    def parse_card(text):
        (tmp_path / "card.toml").write_text(text)
        return read_card(tmp_path / "card.toml")

    text = made[1].card.to_toml()
    assert parse_card(text) == made[1].card
    other = generate("clinic-1").card
    changes = [
        (made[1].card.fingerprint, other.fingerprint, "fingerprint"),
        (made[1].card.certificate, other.certificate, "fingerprint"),
        ("BEGIN CERT", "BEGIN BERT", "PEM"),
        ("clinic-1", "clinic 1", "name"),
        (":7400", ":74000", "address"),
        (":7400", "", "address"),
        ("address", "adress", "expected a card"),
        ('name = "clinic-1"', "name = 1", "expected a card"),
        ("name = ", "name ", "TOML"),
    ]
    for old, new, word in changes:
        assert old in text
        kind = TrustError if word == "fingerprint" else IdentityError
        with pytest.raises(kind, match=word):
            parse_card(text.replace(old, new))
    with pytest.raises(IdentityError, match="expected a card"):
        parse_card(text + 'more = "x"\n')


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a\n", "ä", "a" * 65])
def test_invalid_names_are_refused(name):
    with pytest.raises(IdentityError, match="name of 1 to 64"):
        generate(name)


@pytest.mark.parametrize(
    "address", ["host", "host:", ":1", "host:0", "host:65536", "a b:1", "http://x:1", "a:1\n"]
)
def test_invalid_addresses_are_refused(address):
    with pytest.raises(IdentityError, match="host:port"):
        generate("a", address)


@pytest.mark.parametrize("address", ["", "127.0.0.1:1", "[::1]:7400", "a.example:65535"])
def test_valid_addresses_are_accepted(address):
    assert generate("a", address).card.address == address


def test_two_certificates_are_not_a_card(made):
    pem = made[1].card.certificate
    with pytest.raises(IdentityError, match="one certificate"):
        Card("a", "", pem + pem)


def test_a_key_with_the_certificate_of_another_key_is_refused(made):
    with pytest.raises(TrustError, match="another key"):
        Identity(made[1].card, generate("x").key)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(IdentityError, match="Could not write"):
        create_identity(tmp_path / "file" / "site", "a")
