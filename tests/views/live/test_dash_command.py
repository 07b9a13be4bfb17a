"""Tests of `topdp dash` on the command line: errors, start and end."""

import json
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
from serving import PATIENCE, books, standing

from topdp.errors import ExitCode

LONG = {"client": "me", "values": {"topology.agents": "100", "topology.kind": "random", "rounds": "440"}}
"""A request that takes the planner about 15 seconds, and stays within its limits."""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "it does not exist"),
        (["file"], "got a file"),
        ([], "there is no runs/ here"),
        (["--federation", "none.toml"], "expected a TOML file"),
        ([".", "--host", "no such host"], "--host"),
        ([".", "--host", "192.0.2.1", "--port", "0"], "expected an address of this machine"),
        ([".", "--certificate", "x.pem"], "--certificate and --key together"),
        ([".", "--token-file", "short"], "at least 16"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(topdp, tmp_path, monkeypatch, arguments, words):
    (tmp_path / "file").write_text("")
    (tmp_path / "short").write_text("short")
    (tmp_path / "short").chmod(0o600)
    monkeypatch.chdir(tmp_path)
    done = topdp("dash", *arguments)
    assert done.code == ExitCode.INPUT and words in done.err and len(done.err.splitlines()) == 1, done.err


def test_a_port_in_use_is_one_line_and_code_6(topdp, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = topdp("dash", tmp_path, "--port", taken.getsockname()[1])
    assert done.code == ExitCode.UNAVAILABLE
    assert "is in use" in done.err and "--port" in done.err and len(done.err.splitlines()) == 1


def test_files_that_are_no_certificate_are_refused(topdp, tmp_path):
    (tmp_path / "x.pem").write_text("nothing of the kind")
    done = topdp(
        "dash", tmp_path, "--port", 0, "--certificate", tmp_path / "x.pem", "--key", tmp_path / "x.pem"
    )
    assert done.code == ExitCode.INPUT and "expected PEM files" in done.err


def test_missing_packages_are_reported_with_the_command_to_install_them(topdp, tmp_path, monkeypatch):
    monkeypatch.setattr("topdp.cli.dash_command.DASH_PACKAGES", ("no_such_part",))
    done = topdp("dash", tmp_path)
    assert done.code == ExitCode.INPUT and "pip install -c constraints.txt '.[dash]'" in done.err


@pytest.mark.slow
def test_the_server_ends_soon_after_a_signal_despite_open_streams(tmp_path):
    standing(books(tmp_path / "ada"))
    command = [
        sys.executable,
        "-m",
        "topdp",
        "dash",
        str(tmp_path),
        "--port",
        "0",
        "--host",
        "0.0.0.0",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = httpx.URL(json.loads(process.stdout.readline())["url"])
            token = url.params["token"]
            here = f"http://127.0.0.1:{url.port}"
            with httpx.Client(base_url=here, timeout=PATIENCE, trust_env=False) as client:
                assert client.get("/api/runs").status_code == 401
                known = {"Authorization": f"Bearer {token}"}
                assert client.get("/api/runs", headers=known).json()["sources"][0]["agent"] == "ada"
                asking = client.build_request(
                    "POST", "/api/plan", json=LONG, headers={**known, "Origin": here}
                )
                with client.stream("GET", "/api/events", headers=known) as stream:
                    pieces = stream.iter_text()
                    assert "beat" in next(pieces)
                    planned = client.send(asking, stream=True)
                    assert "toml" in next(planned.iter_lines())  # the planner now computes
                    begun = time.monotonic()
                    process.send_signal(signal.SIGINT)
                    assert list(pieces) is not None  # the stream ended normally
                    planned.close()
            assert process.wait(PATIENCE) == ExitCode.DONE
            took = time.monotonic() - begun
            assert took < 8, took  # one or two seconds on an idle machine
            said = process.stderr.read()
            assert "in transit" in said and "Traceback" not in said
        finally:
            process.kill()
