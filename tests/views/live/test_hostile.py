"""Tests of the live page against malicious folders, servers and visitors."""

import json
import os
import shutil
import socket
import threading
from contextlib import contextmanager

import pytest
from serving import books, run_in, served, standing, until

from topdp.views.live import disk_watch, live_server, live_sources, remote_fetch
from topdp.views.live.disk_watch import AnswerCache, DiskWatch, summary
from topdp.views.live.federation_page import FederationFeed, FetchError, PublishingPlace, fetch_agents

SECRET = "the-words-of-another-file"

# Folders


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    made = tmp_path_factory.mktemp("hostile") / "run"
    run_in(made, rounds=2)
    return made


@pytest.fixture
def damaged_run(run, tmp_path):
    """An intact agent beside a run that a test damages: (folder of both, the run)."""
    shutil.copytree(run, tmp_path / "ill")
    books(tmp_path / "well")
    standing(tmp_path / "well")
    return tmp_path, tmp_path / "ill"


def told(page, kind, name):
    return next(
        one
        for one in page.client.get("/api/runs").json()["sources"]
        if (one["kind"], one["name"]) == (kind, name)
    )


@pytest.mark.parametrize("name", ["run.json", "config.toml", "metrics.jsonl", "privacy.json", "plan.npz"])
def test_symbolic_links_are_not_read(damaged_run, name):
    place, path = damaged_run
    outside = place / "outside.json"
    outside.write_text(json.dumps({SECRET: SECRET}))
    (path / name).unlink()
    (path / name).symlink_to(outside)
    with served([place]) as page:
        found = told(page, "run", "ill")
        facts = page.client.get(f"/api/runs/{found['id']}/facts").text
        assert "plain files" in found["problem"] and "plain files" in facts
        assert SECRET not in facts + json.dumps(found)


@pytest.mark.parametrize(
    ("folder", "name"), [("ill", "metrics.jsonl"), ("ill", "privacy.json"), ("well", "status.json")]
)
def test_the_watch_does_not_wait_for_a_pipe(damaged_run, folder, name):
    place, _ = damaged_run
    (place / folder / name).unlink()
    os.mkfifo(place / folder / name)
    watching = threading.Thread(target=DiskWatch([place]).scan, daemon=True)
    watching.start()
    watching.join(20)
    assert not watching.is_alive(), "the watch reads a pipe for ever"


@pytest.mark.parametrize(
    "line",
    [
        {"accuracy": {"mean": "x"}},
        {"accuracy": {"mean": {}}},
        {"accuracy": {"mean": 10**400}},
        {"\ud800": {"mean": 1}},
    ],
)
def test_a_damaged_run_does_not_hide_other_sources(damaged_run, line):
    place, path = damaged_run
    (path / "metrics.jsonl").write_text(json.dumps({"round": 1, **line}) + "\n")
    with served([place]) as page:
        assert "damaged" in told(page, "run", "ill")["problem"]
        assert told(page, "agent", "well")["problem"] is None


def test_errors_do_not_reveal_the_path_of_a_folder(damaged_run):
    place, path = damaged_run
    (path / "config.toml").unlink()
    (place / "well" / "ledger.sqlite").write_bytes(
        b"nothing of the kind, and long enough to be looked at" * 50
    )
    with served([place]) as page:
        found = told(page, "run", "ill")
        said = [page.client.get(f"/api/runs/{found['id']}/facts").text, page.client.get("/api/runs").text]
        said.append(page.client.get(f"/api/agents/{told(page, 'agent', 'well')['id']}").text)
        assert "in ill, could not read config.toml" in said[0]
        assert str(place) not in "".join(said)


def test_a_status_file_of_another_program_hides_no_source(damaged_run):
    place, _ = damaged_run
    file = place / "well" / "status.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "begun": 3}))
    assert {kind for kind, _ in DiskWatch([place]).scan()} == {"run", "agent"}


def test_folder_names_with_markup_or_invalid_text_are_shown_as_text(damaged_run):
    place, path = damaged_run
    path.rename(place / os.fsdecode(b"<b>\xff"))
    with served([place]) as page:
        found = told(page, "run", "<b>\ufffd")
        assert "&lt;b&gt;\ufffd" in page.client.get(f"/runs/{found['id']}").text
        assert page.client.get(f"/api/runs/{found['id']}/facts").json()["name"] == "<b>\ufffd"


def test_a_folder_may_disappear_while_it_is_watched(damaged_run, monkeypatch):
    monkeypatch.setattr(disk_watch, "SCAN_INTERVAL_SECONDS", 0.02)
    place, path = damaged_run
    with served([place]) as page:
        id = told(page, "run", "ill")["id"]
        path.rename(place / ".gone")
        facts = page.client.get(f"/api/runs/{id}/facts")
        assert facts.status_code == 404 or "Expected a run" in facts.json()["problem"]
        until(lambda: page.client.get(f"/runs/{id}").status_code == 404, "the run to be gone")


def test_above_the_limit_the_newest_sources_are_shown(tmp_path, monkeypatch):
    for number, age in enumerate((50, 10, 40, 20, 30)):
        file = tmp_path / f"run-{number}" / "run.json"
        file.parent.mkdir()
        file.write_text("{}")
        os.utime(file, (1e9 - age, 1e9 - age))
    monkeypatch.setattr(live_sources, "MAX_SOURCES", 2)
    found, cut = live_sources.find_sources([tmp_path])
    assert [one.name for one in found] == ["run-1", "run-3"] and cut


def test_a_file_that_is_too_large_for_a_page_is_not_read(damaged_run, monkeypatch):
    monkeypatch.setattr(live_sources, "MAX_OTHER_FILE_BYTES", 10)
    (source,) = (one for one in live_sources.find_sources([damaged_run[0]])[0] if one.name == "ill")
    assert "Use topdp report" in summary(source)["problem"]


def test_a_plan_that_is_too_large_once_unpacked_is_not_read(damaged_run, monkeypatch):
    (source,) = (one for one in live_sources.find_sources([damaged_run[0]])[0] if one.name == "ill")
    assert summary(source)["problem"] is None
    monkeypatch.setattr(live_sources, "MAX_UNPACKED_PLAN_BYTES", 1000)
    assert "too large once unpacked" in summary(source)["problem"]


def test_a_slow_source_does_not_delay_other_sources(tmp_path):
    books(tmp_path / "slow", "slow")
    books(tmp_path / "quick", "quick")
    slow, quick = sorted(live_sources.find_sources([tmp_path])[0], key=lambda one: one.name == "quick")
    begun, go = threading.Event(), threading.Event()

    def read(source):
        if source == slow:
            begun.set()
            go.wait(20)
        return {"name": source.name}

    answers = AnswerCache(read)
    waiting = threading.Thread(target=answers.get, args=(slow,), daemon=True)
    waiting.start()
    assert begun.wait(20)
    found = []
    other = threading.Thread(target=lambda: found.append(answers.get(quick)), daemon=True)
    other.start()
    other.join(10)
    go.set()
    waiting.join(20)
    assert found == [b'{"name": "quick"}']


def test_an_internal_error_is_reported_in_words(tmp_path):
    books(tmp_path / "ada")
    (source,) = live_sources.find_sources([tmp_path])[0]
    assert "show them: ZeroDivisionError" in json.loads(AnswerCache(lambda one: 1 / 0).get(source))["problem"]


# Remote servers


@contextmanager
def drip_server(first, drop):
    """A server that sends `first`, and then `drop` again and again."""
    server = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve():
        while not over.is_set():
            try:
                peer, _ = server.accept()
                with peer:
                    peer.sendall(first)
                    while not over.wait(0.02):
                        peer.sendall(drop)
            except OSError:
                continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        over.set()
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(20)


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_a_server_that_answers_in_drops_times_out(first, drop, monkeypatch):
    monkeypatch.setattr(remote_fetch, "RESPONSE_SECONDS", 0.2)
    with (
        drip_server(first, drop) as url,
        pytest.raises(FetchError, match=r"not answer in time|cannot be reached"),
    ):
        fetch_agents(PublishingPlace(url, None))


def test_a_publishing_place_that_never_answers_does_not_delay_others(damaged_run, monkeypatch):
    asked, go = threading.Event(), threading.Event()

    def answer(place):
        if place.url == "slow":
            asked.set()
            go.wait(20)
        return []

    monkeypatch.setattr("topdp.views.live.federation_page.fetch_agents", answer)
    federation = FederationFeed([PublishingPlace("slow", None), PublishingPlace("quick", None)])
    with served([damaged_run[0]], federation=federation) as page:
        assert asked.wait(20)
        until(
            lambda: page.client.get("/api/federation").json()["places"][1]["problem"] is None,
            "the quick place",
        )
        assert page.client.get("/api/federation").json()["places"][0]["problem"] == "not asked yet"
        go.set()


def test_after_an_internal_error_the_next_request_follows(damaged_run, monkeypatch):
    monkeypatch.setattr("topdp.views.live.federation_page.POLL_INTERVAL_SECONDS", 0.01)
    answers = [ZeroDivisionError]

    def answer(place):
        if answers:
            raise answers.pop()
        return []

    monkeypatch.setattr("topdp.views.live.federation_page.fetch_agents", answer)
    with served(
        [damaged_run[0]], federation=FederationFeed([PublishingPlace("http://127.0.0.1", None)])
    ) as page:
        until(
            lambda: page.client.get("/api/federation").json()["places"][0]["problem"] is None,
            "the next request",
        )


# Visitors


def ended(visitor):
    """Whether the other side has closed the connection, normally or by a reset."""
    try:
        return visitor.recv(1) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_a_connection_without_a_complete_request_is_closed(damaged_run, monkeypatch, said):
    monkeypatch.setattr(live_server, "REQUEST_SECONDS", 0.2)
    with (
        served([damaged_run[0]]) as page,
        socket.create_connection(("127.0.0.1", page.port), timeout=20) as visitor,
    ):
        visitor.sendall(said)
        assert ended(visitor)
        assert page.client.get("/api/runs").status_code == 200


def test_a_connection_whose_request_was_refused_is_closed(damaged_run, monkeypatch):
    """A visitor cannot keep the connection by sending more of a body that nobody reads."""
    monkeypatch.setattr(live_server, "REQUEST_SECONDS", 0.2)
    head = b"POST /api/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx"
    with (
        served([damaged_run[0]]) as page,
        socket.create_connection(("127.0.0.1", page.port), timeout=20) as visitor,
    ):
        visitor.sendall(head)
        while not ended(visitor):
            visitor.sendall(b"x")


def test_the_number_of_connections_is_limited(damaged_run, monkeypatch):
    monkeypatch.setattr(live_server, "MAX_CONNECTIONS", 3)
    with served([damaged_run[0]]) as page:
        visitors = [socket.create_connection(("127.0.0.1", page.port), timeout=20) for _ in range(4)]
        assert ended(visitors[-1])  # httpx already has one
        for one in visitors:
            one.close()
        until(lambda: _answers(page.port), "the other connections to close")


def _answers(port):
    with socket.create_connection(("127.0.0.1", port), timeout=20) as visitor:
        try:
            visitor.sendall(b"GET /static/dash.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return visitor.recv(12) == b"HTTP/1.1 200"
        except ConnectionError:
            return False


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_from_other_sites_of_the_same_machine_are_refused(damaged_run, site):
    with served([damaged_run[0]]) as page:
        assert page.client.get("/api/runs", headers={"sec-fetch-site": site}).status_code == 403
        assert page.client.get("/api/runs", headers={"sec-fetch-site": "same-origin"}).status_code == 200
