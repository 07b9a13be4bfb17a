"""Tests of access to the live page: host names, tokens, cookies, headers, methods and paths."""

import pytest
from serving import books, directly, served, standing

from topdp.errors import InputError
from topdp.views.live.live_app import Dash, application
from topdp.views.live.page_access import SECURITY_HEADERS, Access, token_from

TOKEN, PUBLISH = "t" * 32, "p" * 32
PAGES = ("/", "/federation", "/api/runs", "/api/federation", "/api/published", "/api/events", "/nowhere")


@pytest.fixture
def agent(tmp_path):
    standing(books(tmp_path / "ada"))
    return tmp_path


def client(paths, host="127.0.0.1", secure=False, **access):
    dash = Dash(paths)
    dash.watch.scan()
    return directly(application(dash, Access(**access), secure), host)


def with_token(token):
    return {"Authorization": f"Bearer {token}"}


def test_every_response_has_the_security_headers(agent):
    with client([agent]) as asked:
        for path in ("/", "/nowhere", "/api/runs", "/static/dash.js", "/runs/x", "/compare"):
            found = asked.get(path).headers
            for name, value in SECURITY_HEADERS.items():
                if name != "cache-control":
                    assert found[name] == value, (path, name)
            assert found["cache-control"] == ("no-cache" if "static" in path else "no-store")
    with client([agent], token=TOKEN) as asked:
        assert (
            asked.get("/").headers["content-security-policy"] == SECURITY_HEADERS["content-security-policy"]
        )


def test_pages_have_no_inline_scripts_or_styles(agent):
    with client([agent]) as asked:
        id = asked.get("/api/runs").json()["sources"][0]["id"]
        for path in ("/", "/federation", f"/agents/{id}", "/nowhere"):
            text = asked.get(path).text
            assert "style=" not in text and "<style" not in text
            assert text.count("<script") == text.count('<script src="/static/'), path


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "0.0.0.0", "192.168.1.5"])
def test_without_a_token_only_loopback_names_are_answered(agent, host):
    with client([agent], host) as asked:
        for path in PAGES:
            answer = asked.get(path)
            assert answer.status_code == 421
            assert "ada" not in answer.text
    with client([agent], host, token=TOKEN) as asked:
        assert asked.get("/api/runs", headers=with_token(TOKEN)).status_code == 200


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:80"])
def test_all_names_of_loopback_are_accepted(agent, host):
    with client([agent], host) as asked:
        assert asked.get("/api/runs").status_code == 200


def test_requests_without_the_token_are_refused_and_reveal_nothing(agent):
    with client([agent], token=TOKEN, published=PUBLISH) as asked:
        wrong = ({}, with_token("x" * 32), with_token(""), {"Cookie": f"topdp-dash={TOKEN}"}, {"Cookie": "a"})
        for path in PAGES:
            for headers in (*wrong, *([] if path == "/api/published" else [with_token(PUBLISH)])):
                answer = asked.get(path, headers=headers)
                assert answer.status_code == 401, (path, headers)
                assert "ada" not in answer.text and "token" in answer.text
                assert answer.headers["www-authenticate"] == "Bearer"
        assert asked.get("/?token=wrong").status_code == 401
        assert asked.get("/static/dash.css").status_code == 200


def test_the_publishing_token_opens_only_the_published_facts(agent):
    with client([agent], token=TOKEN, published=PUBLISH) as asked:
        found = asked.get("/api/published", headers=with_token(PUBLISH))
        assert [one["name"] for one in found.json()["agents"]] == ["ada"]
        assert asked.get(f"/?token={PUBLISH}").status_code == 401


def test_a_token_in_the_address_becomes_a_cookie_that_does_not_contain_it(agent):
    with client([agent], token=TOKEN) as asked:
        answer = asked.get(f"/?token={TOKEN}")
        said = answer.headers["set-cookie"]
        assert "HttpOnly" in said and "SameSite=strict" in said and TOKEN not in said
        assert TOKEN not in answer.text and 'content="0; url=/"' in answer.text
        assert asked.get("/api/runs").status_code == 200  # the client keeps cookies


def test_over_https_the_cookie_is_marked_secure(agent):
    with client([agent], secure=True, token=TOKEN) as asked:
        assert "Secure" in asked.get(f"/?token={TOKEN}").headers["set-cookie"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_methods_that_change_something_are_refused(agent, method):
    with client([agent]) as asked:
        assert asked.request(method, "/api/runs").status_code == 405


def test_other_sites_are_refused(agent):
    with client([agent]) as asked:
        assert asked.get("/api/events", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert asked.get("/api/runs", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
        for origin in ({}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
            assert asked.post("/api/plan", json={}, headers=origin).status_code == 403
        ours = asked.post("/api/plan", json={}, headers={"Origin": "http://127.0.0.1"})
        assert ours.status_code != 403


def test_no_path_reads_files_outside_the_served_folders(agent):
    (agent / "secret.js").write_text("secret")
    ways = [
        "../secret.js",
        "..%2fsecret.js",
        "%2e%2e/secret.js",
        "..\\secret.js",
        "/etc/passwd",
        "dash.js%00",
    ]
    with served([agent]) as page:
        for way in ways:
            for place in ("/static/", "/runs/", "/agents/", "/api/agents/", "/api/runs/"):
                answer = page.client.get(place + way)
                assert answer.status_code == 404 and "secret" not in answer.text.replace("secret.js", "")
        assert page.client.get("/api/runs/%2e%2e%2f/facts").status_code == 404


def test_only_the_owner_can_read_a_new_token_file(tmp_path, monkeypatch):
    made = token_from(tmp_path / "token", "NO_SUCH")
    assert len(made) > 40 and (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert token_from(tmp_path / "token", "NO_SUCH") == made
    monkeypatch.setenv("SOME_TOKEN", "a-token-of-my-own-choice")
    assert token_from(None, "SOME_TOKEN") == "a-token-of-my-own-choice"


@pytest.mark.parametrize("text", ["short", "", "spaces in the token here", "ümläute-are-not-for-headers"])
def test_invalid_tokens_are_refused(tmp_path, text):
    (tmp_path / "token").write_text(text)
    (tmp_path / "token").chmod(0o600)
    with pytest.raises(InputError, match="expected a token of at least 16"):
        token_from(tmp_path / "token", "NO_SUCH")


def test_a_token_that_others_can_read_is_refused(tmp_path):
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        token_from(tmp_path / "token", "NO_SUCH")
