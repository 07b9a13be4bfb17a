"""Tests of agents that are published elsewhere: fetched with a token, checked, and shown with their age."""

import datetime
import http.server
import ipaddress
import json
import re
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from serving import books, served, standing, until

from topdp.errors import InputError
from topdp.views.live import federation_page, remote_fetch
from topdp.views.live.federation_page import (
    FederationFeed,
    FetchError,
    PublishingPlace,
    fetch_agents,
    read_places,
)

PAGE = Path(__file__).parents[3] / "docs" / "dash.md"
TOKEN, PUBLISH = "t" * 32, "p" * 32


@pytest.fixture
def ada(tmp_path):
    standing(books(tmp_path / "ada"))
    return tmp_path


@contextmanager
def answering(body, status=200, headers=()):
    """A server that always sends the same response."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_publishing_place_is_fetched_with_its_token(ada):
    with served([ada], token=TOKEN, published=PUBLISH) as page:
        (found,) = fetch_agents(PublishingPlace(page.url, PUBLISH, "ada"))
        assert (found["name"], found["epsilon"], found["links"]["bob"]["state"]) == ("ada", 0.375, "heard")
        with pytest.raises(FetchError, match="the token is refused"):
            fetch_agents(PublishingPlace(page.url, "x" * 32))
        with pytest.raises(FetchError, match="expected the agent bob, got ada"):
            fetch_agents(PublishingPlace(page.url, PUBLISH, "bob"))
    with pytest.raises(FetchError, match="cannot be reached"):
        fetch_agents(PublishingPlace(page.url, PUBLISH))


def self_signed_certificate(folder):
    """A key, and a certificate for 127.0.0.1 that this key signs."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "ada")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(1))
    made = builder.add_extension(here, False).sign(key, hashes.SHA256())
    coded = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "key.pem").write_bytes(key.private_bytes(*coded))
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder / "certificate.pem", folder / "key.pem"


def test_over_https_only_the_configured_certificate_is_trusted(ada, tmp_path):
    certificate, key = self_signed_certificate(tmp_path)
    with served([ada], certificate=certificate, key=key, token=TOKEN, published=PUBLISH) as page:
        assert [
            one["name"] for one in fetch_agents(PublishingPlace(page.url, PUBLISH, "ada", certificate))
        ] == ["ada"]
        with pytest.raises(FetchError, match="the certificate of the server is not trusted"):
            fetch_agents(PublishingPlace(page.url, PUBLISH, "ada"))


def published(**changes):
    agent = {
        "name": "ada", "federation": "f", "process": "running", "doing": "waits", "round": 3, "rounds": 8,
        "epsilon": 0.5, "budget": 1.0, "charged_by": "adaptive", "paused": False, "stopped": None,
        "links": {},
    }  # fmt: skip
    return json.dumps({"agents": [{**agent, **changes}]}).encode()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "response is invalid"),
        (b"[]", "response is invalid"),
        (published(name="x" * 1000), "response is invalid"),
        (published(round="3"), "response is invalid"),
        (published(process="<script>"), "response is invalid"),
        (published(epsilon=-1.0), "response is invalid"),
        (published().replace(b"0.5", b"NaN"), "response is invalid"),
        (published(links={"bob": {"state": "anything", "received": 1}}), "response is invalid"),
        (b" " * (remote_fetch.MAX_RESPONSE_BYTES + 1), "too long"),
        (published(links={"b" * 10_000: {"state": "heard", "received": 1}}), "response is invalid"),
        (published(round=10**30), "response is invalid"),
        (b"[" * 100_000, "response is invalid"),
        (published().replace(b'"ada"', b'"\xff"'), "response is invalid"),
        (published().replace(b'"ada"', b'"\\ud800"'), "response is invalid"),
    ],
)
def test_invalid_responses_are_refused(body, words):
    with answering(body) as url, pytest.raises(FetchError, match=words):
        fetch_agents(PublishingPlace(url, None))


def test_a_token_is_not_sent_to_the_target_of_a_redirect(ada):
    with served([ada]) as page:
        elsewhere = [("Location", page.url + "/api/published")]
        with answering(b"", 302, elsewhere) as url, pytest.raises(FetchError, match="HTTP status 302"):
            fetch_agents(PublishingPlace(url, PUBLISH))


def test_only_published_facts_are_passed_on():
    with answering(published(scores={"accuracy": 0.9}, extra="secret")) as url:
        assert "secret" not in str(fetch_agents(PublishingPlace(url, None))) and "0.9" not in str(
            fetch_agents(PublishingPlace(url, None))
        )


def test_the_page_shows_local_and_remote_agents_and_reports_lost_ones(ada, tmp_path, monkeypatch):
    monkeypatch.setattr(federation_page, "POLL_INTERVAL_SECONDS", 0.05)
    standing(books(tmp_path / "here" / "bob", "bob", peers=("ada",)))
    with served([ada / "ada"], published=PUBLISH, token=TOKEN) as there:
        asked = FederationFeed([PublishingPlace(there.url, PUBLISH, "ada")])
        with served([tmp_path / "here"], federation=asked) as page:

            def view():
                return page.client.get("/api/federation").json()

            until(lambda: view()["places"][0]["problem"] is None, "ada to answer")
            assert [one["name"] for one in view()["agents"]] == ["bob", "ada"]
    # The place is gone; its last answer stays, with its age.
    with served([tmp_path / "here"], federation=asked) as page:
        problem = "the server cannot be reached"
        until(lambda: view_of(page)["places"][0]["problem"] == problem, "ada to be lost")
        told = view_of(page)
        assert told["agents"][1]["lost"] == problem and told["places"][0]["age"] >= 0


def view_of(page):
    return page.client.get("/api/federation").json()


def test_the_documented_file_of_places_is_read(tmp_path):
    (tmp_path / "ada-published.token").write_text(PUBLISH + "\n")
    (tmp_path / "ada-published.token").chmod(0o600)
    (tmp_path / "ada.pem").write_text("certificate")
    file = tmp_path / "federation.toml"
    (written,) = re.findall(r"^```\n(\[\[agent.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    file.write_text(f'{written}\n[[agent]]\nurl = "http://127.0.0.1:9000/"\n')
    first, second = read_places(file)
    assert first == PublishingPlace("https://ada.example.org:8765", PUBLISH, "ada", tmp_path / "ada.pem")
    assert second == PublishingPlace("http://127.0.0.1:9000", None)
    assert PUBLISH not in repr(first)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected 1 to"),
        ("not toml", "expected a TOML file"),
        ("[agent]\nurl = 'https://a'", "expected 1 to"),
        ("other = 1\n[[agent]]\nurl = 'https://a'", "nothing else"),
        ("[[agent]]\nname = 'ada'", "expected url"),
        ("[[agent]]\nurl = 'https://a'\ntoke = 'x'", "expected only the keys name, url"),
        ("[[agent]]\nurl = 3", "each as text"),
        ("[[agent]]\nurl = 'http://ada.example.org'", "expected https"),
        ("[[agent]]\nurl = 'file:///etc/passwd'", "expected url"),
        ("[[agent]]\nurl = 'https://user:pass@a'", "expected url"),
        ("[[agent]]\nurl = 'https://a'\ntoken-file = 'none'", "does not exist"),
        ("[[agent]]\nurl = 'https://a'\ncertificate = 'none'", "does not exist"),
        ("agent = " + "[" * 5000, "too deep"),
    ],
)
def test_a_wrong_file_of_places_is_refused_by_name(tmp_path, text, words):
    (tmp_path / "f.toml").write_text(text)
    with pytest.raises(InputError, match=words):
        read_places(tmp_path / "f.toml")
