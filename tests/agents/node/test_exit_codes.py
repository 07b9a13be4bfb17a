"""Tests of every exit code of agents on the command line: one line on stderr, and a code for programs."""

import fcntl
import json
import os
import shutil
import socket
import sqlite3
import sys
import time
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from builders import blobs_file
from topdp.agents.agreement import federation_manifest, identity
from topdp.agents.agreement.identity_card import read_card
from topdp.agents.agreement.manifest import Manifest
from topdp.agents.ledger import start_choices
from topdp.agents.ledger.ledger import Ledger
from topdp.agents.ledger.ledger_entries import ReleaseCost
from topdp.agents.node import agent_status
from topdp.agents.wire.transport import MessageKind, Reply, ReplyCode
from topdp.base.files import write_atomically
from topdp.errors import TrustError
from topdp.runs import config


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two sites that have agreed on a manifest; the records are ada's."""
    folder = tmp_path_factory.mktemp("sites")
    for port, name in ((7401, "ada"), (7402, "bob")):
        identity.create_identity(folder / name, name, f"localhost:{port}")
    cards = [folder / name / "card.toml" for name in ("ada", "bob")]
    wanted = config.read(changes=["rounds=3", "topology.agents=2", "privacy.guarantee=worst-case"])
    terms, _, _ = federation_manifest.create_manifest(cards, "240", wanted, "ada-bob", {})
    terms.write(folder / "manifest.toml")
    blobs_file(folder / "records.npz", 240)
    return folder


@pytest.fixture
def site(made, tmp_path, topdp, monkeypatch):
    """A copy of ada's site, and functions that run her commands."""
    folder = shutil.copytree(made, tmp_path / "site")
    monkeypatch.chdir(tmp_path)

    def start(*more, command="start"):
        places = ("--manifest", folder / "manifest.toml", "--identity", folder / "ada")
        return topdp("agent", command, *places, "--data", folder / "records.npz", "--state", "state", *more)

    def create(*more):
        cards = (folder / "ada" / "card.toml", folder / "bob" / "card.toml")
        given = (
            "--links",
            "ada-bob",
            "--records",
            "240",
            "--robust",
            "none",
            "--set",
            "rounds=3",
            "--out",
            "new.toml",
        )
        return topdp("federation", "create", *cards, *given, *more)

    return SimpleNamespace(folder=folder, topdp=topdp, start=start, create=create)


def one_line(done):
    """The error message, on one line; there is no traceback, and nothing on stdout."""
    message = " ".join(done.err.split())
    assert "Traceback" not in message and done.out == ""
    return message


MISTAKES = {
    "a name with a blank": (["agent", "init", "--name", "ada b"], "Expected a name"),
    "an invalid port": (["agent", "init", "--name", "ada", "--address", "h:99999"], "1 to 65535"),
    "no manifest": (
        ["agent", "start", "--manifest", "no", "--data", "no", "--state", "s"],
        "Expected a file no",
    ),
    "no ledger to show": (["agent", "status", "--state", "nowhere"], "there is none"),
    "no ledger to verify": (["agent", "ledger", "verify", "--state", "nowhere"], "there is none"),
    "no card": (["federation", "create", "no.toml", "no.toml", "--records", "9"], "Expected a file no.toml"),
    "no card and no records": (["federation", "create", "missing.toml"], "There is no file missing.toml"),
    "no records": (["federation", "create", "missing.toml"], "--records: expected the number"),
    "a budget for nobody": (["federation", "demo", "--agents", "3", "--budget", "9=1"], "--budget"),
    "a budget without an agent": (["federation", "demo", "--agents", "3", "--budget", "one"], "--budget"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_in_arguments_exit_with_2(case, topdp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, words = MISTAKES[case]
    done = topdp(*arguments)
    assert done.code == 2 and words in one_line(done)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--links", "ada-eve"], "--links: expected the names of two agents"),
        (["--records", "many"], "--records: expected one whole number"),
        (["--records", "1,2,3"], "--records: expected one whole number"),
        (["--dead-neighbour", "ignore"], "rules.dead_neighbour"),
        (["--idle-timeout", "0"], "rules.idle_timeout"),
        (["--largest-norm", "0"], "rules.largest_norm"),
        (["--largest-norm", "1e16"], "rules.largest_norm"),
        (["--largest-norm", "nan"], "rules.largest_norm"),
        (["--set", "method.name=no-noise"], "no finite epsilon"),
        (["--out", "nowhere/new.toml"], "Could not write nowhere/new.toml"),
    ],
)
def test_an_invalid_manifest_exits_with_2(site, more, words):
    done = site.create(*more)
    assert done.code == 2 and words in one_line(done)


def test_a_manifest_needs_a_robust_rule_or_an_explicit_none(site):
    cards = (site.folder / "ada" / "card.toml", site.folder / "bob" / "card.toml")
    given = ("federation", "create", *cards, "--links", "ada-bob", "--records", "240", "--set", "rounds=3")
    done = site.topdp(*given, "--out", "new.toml")
    assert done.code == 2 and "--robust: expected a rule against hostile members" in one_line(done)
    worst = ("--set", "privacy.guarantee=worst-case", "--set", "method.name=dsgd", "--set", "robust.radius=1")
    for more, rule in ((["--robust", "clipped"], "clipped"), (["--set", "robust.rule=clipped"], "clipped")):
        Path("new.toml").unlink(missing_ok=True)
        done = site.topdp(*given, *worst, *more, "--out", "new.toml")
        assert done.code == 0, done.err
        assert tomllib.loads(Path("new.toml").read_text())["run"]["robust"]["rule"] == rule


def test_a_manifest_contains_the_requested_largest_norm(site):
    done = site.create(
        "--largest-norm", "50", "--records", "240,240", "--set", "privacy.guarantee=worst-case"
    )
    assert done.code == 0, done.err
    assert tomllib.loads(Path("new.toml").read_text())["rules"]["largest_norm"] == 50


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--epsilon", "-1"], "--epsilon: expected a finite number"),
        (["--live-pairing"], "expected method.mode = async"),
        (["--listen", "nonsense"], "Expected an address"),
        (["--metrics", "99999"], "--metrics"),
    ],
)
def test_invalid_options_of_start_exit_with_2(site, more, words):
    done = site.start(*more)
    assert done.code == 2 and words in done.err


def test_a_port_in_use_exits_with_6(site, monkeypatch):
    """The agent's own port or that of its metrics: one line, and a code after which a retry may succeed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = site.start("--metrics", port)
        assert done.code == 6 and f"--metrics: could not listen on 127.0.0.1:{port}" in one_line(done)
        monkeypatch.setattr(Manifest, "dialer", lambda self, first, second: "bob")
        done = site.start("--listen", f"127.0.0.1:{port}")
        assert done.code == 6 and f"Could not listen on 127.0.0.1:{port}" in one_line(done)


def test_an_identity_that_exists_exits_with_2(site):
    done = site.topdp("agent", "init", "--name", "ada", "--identity", site.folder / "ada")
    assert done.code == 2 and "Expected no identity" in one_line(done)


def test_a_manifest_that_is_no_text_exits_with_2(site):
    (site.folder / "manifest.toml").write_bytes(b"\xff\xfe")
    done = site.start()
    assert done.code == 2 and "Could not read" in one_line(done)


def test_an_agent_that_the_manifest_does_not_name_exits_with_2(site):
    shutil.rmtree(site.folder / "ada")
    identity.create_identity(site.folder / "ada", "adam")
    done = site.start()
    assert done.code == 2 and "Did you mean 'ada'" in one_line(done)


def test_a_state_folder_of_another_federation_exits_with_2(site, tmp_path):
    Ledger(tmp_path / "state", "another", "ada").close()
    done = site.start()
    assert done.code == 2 and "state folder of its own" in one_line(done)


def test_a_state_folder_in_use_exits_with_2(site, tmp_path):
    (tmp_path / "state").mkdir()
    with (tmp_path / "state" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = site.start()
    assert done.code == 2 and "Another process uses" in one_line(done)


def test_an_unknown_failpoint_exits_with_2(site, monkeypatch):
    monkeypatch.setenv("TOPDP_FAILPOINT", "nowhere:1")
    done = site.start(command="rehearse")
    assert done.code == 2 and "Expected TOPDP_FAILPOINT" in one_line(done)


@pytest.mark.parametrize("command", [["agent", "init", "--name", "a"], ["federation", "demo"]])
@pytest.mark.parametrize(
    "missing", ["cryptography", "google", "google.protobuf", "grpc", "prometheus_client"]
)
def test_missing_optional_packages_exit_with_2(command, missing, topdp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    done = topdp(*command)
    assert done.code == 2 and "pip install -c constraints.txt '.[agents]'" in one_line(done)
    assert list(tmp_path.iterdir()) == []


def readable_by_others(site):
    (site.folder / "ada" / "key.pem").chmod(0o644)


def identity_that_others_can_write(site):
    (site.folder / "ada").chmod(0o777)


def state_that_others_can_write(site):
    Path("state").mkdir()
    Path("state").chmod(0o777)


def key_of_another(site):
    shutil.copy(site.folder / "bob" / "key.pem", site.folder / "ada" / "key.pem")


def certificate_of_another(site):
    shutil.copy(site.folder / "bob" / "certificate.pem", site.folder / "ada" / "certificate.pem")


def changed_manifest(site):
    path = site.folder / "manifest.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 2"))


def another_identity(site):
    shutil.rmtree(site.folder / "ada")
    identity.create_identity(site.folder / "ada", "ada")


def expired(site):
    old = identity.generate("ada", start=datetime.now(UTC) - timedelta(days=30), validity=timedelta(days=29))
    (site.folder / "ada" / "key.pem").write_bytes(old.key_pem())
    write_atomically(site.folder / "ada" / "certificate.pem", old.card.certificate)
    write_atomically(site.folder / "ada" / "card.toml", old.card.to_toml())


DISTRUST = {
    "readable by others": (readable_by_others, "mode 600"),
    "an identity folder that others can write": (identity_that_others_can_write, "chmod 700"),
    "a state folder that others can write": (state_that_others_can_write, "chmod 700"),
    "the key of another": (key_of_another, "got another key"),
    "the certificate of another": (certificate_of_another, "got another one"),
    "a manifest that was changed": (changed_manifest, "damaged or was changed"),
    "a certificate that the manifest does not list": (another_identity, "that the manifest lists for ada"),
    "an expired certificate": (expired, "valid from"),
}


@pytest.mark.parametrize("case", DISTRUST)
def test_identities_and_manifests_that_cannot_be_trusted_exit_with_4(site, case):
    change, words = DISTRUST[case]
    change(site)
    done = site.start()
    assert done.code == 4 and words in one_line(done)


def test_a_card_that_was_changed_exits_with_4(site):
    card = site.folder / "bob" / "card.toml"
    mine = read_card(site.folder / "ada" / "card.toml")
    theirs = read_card(card)
    card.write_text(card.read_text().replace(theirs.fingerprint, mine.fingerprint))
    done = site.create()
    assert done.code == 4 and "the card is damaged or was changed" in one_line(done)


TAMPERING = {
    "a smaller charge": "UPDATE charges SET entry = replace(entry, 'charge\": 0.25', 'charge\": 0.05')",
    "an invalid charge": "UPDATE charges SET entry = 'nothing'",
    "a charge in words": "UPDATE charges SET entry = replace(entry, '0.25', '\"much\"')",
    "an invalid round": "UPDATE state SET round = 'none'",
    "a missing table": "DROP TABLE outbox",
}


@pytest.mark.parametrize("case", TAMPERING)
def test_a_ledger_that_was_tampered_with_exits_with_4(site, tmp_path, case):
    ledger = Ledger(tmp_path / "state", "federation", "ada")
    ledger.release(0, ReleaseCost(0.25, 0.5, 0.1), {"bob": b"row"}, b"state")
    ledger.close()
    with sqlite3.connect(tmp_path / "state" / "ledger.sqlite") as db:
        db.execute(TAMPERING[case])
    db.close()
    done = site.topdp("agent", "ledger", "verify", "--state", "state")
    assert done.code == 4 and one_line(done).startswith("topdp: ")


def test_a_ledger_of_another_format_exits_with_2(site, tmp_path):
    Ledger(tmp_path / "state", "federation", "ada").close()
    with sqlite3.connect(tmp_path / "state" / "ledger.sqlite") as db:
        db.execute("UPDATE meta SET value = '1' WHERE key = 'format'")
    db.close()
    done = site.topdp("agent", "status", "--state", "state")
    assert done.code == 2 and "another version of topdp" in one_line(done)


class Answers:
    """A transport whose only neighbour replies to every greeting with one code."""

    def __init__(self, code):
        self.code, self.greetings = code, 0

    async def start(self, handle):
        pass

    async def close(self):
        pass

    async def request(self, peer, message):
        self.greetings += 1
        assert message.kind is MessageKind.HELLO and self.greetings < 3, "the agent should have ended"
        return Reply(self.code)


class Agrees(Answers):
    """A transport whose only neighbour has the same terms, and ends the agent when its first row arrives."""

    async def request(self, peer, message):
        if message.kind is MessageKind.HELLO:
            nothing = {"seen": -1, "seen_digest": "", "seen_signature": "", "sent": -1, "sent_digest": ""}
            greeting = {**json.loads(message.body), **nothing}
            return Reply(ReplyCode.OK, body=json.dumps(greeting).encode())
        raise TrustError("the row has arrived")


def test_an_agent_whose_neighbours_all_have_other_terms_exits_with_4(site, monkeypatch):
    """Ends only if all neighbours say so. Old copies of a ledger: `test_trust` and `test_marks`."""
    answers = "topdp.agents.wire.grpc_transport.GrpcTransport"  # imported when an agent starts
    monkeypatch.setattr(answers, lambda *_, **__: Answers(ReplyCode.OTHER_TERMS))
    done = site.start()
    assert done.code == 4 and "got only neighbours with others" in one_line(done)


def test_records_that_do_not_fit_the_manifest_exit_with_5(site):
    blobs_file(site.folder / "records.npz", 120)
    done = site.start()
    assert done.code == 5 and "as the manifest says" in one_line(done)
    (site.folder / "records.npz").unlink()
    assert site.start().code == 5


def test_status_reports_quarantined_neighbours_and_the_reason(site, tmp_path):
    """This holds for a neighbour from which no row was ever accepted."""
    ledger = Ledger(tmp_path / "state", "federation", "ada")
    ledger.quarantine("bob", ReplyCode.NOT_A_ROW, "sent what is not a row")
    ledger.close()
    done = site.topdp("agent", "status", "--state", "state", "--json")
    assert json.loads(done.out)["quarantined"] == {
        "bob": {"code": "NOT_A_ROW", "words": "sent what is not a row"}
    }
    assert "sent what is not a row" in site.topdp("agent", "status", "--state", "state").out


def test_status_exits_with_the_code_of_the_agent_or_6_if_it_hangs_or_was_killed(site, tmp_path, monkeypatch):
    Ledger(tmp_path / "state", "federation", "ada").close()
    ask = ("agent", "status", "--state", "state", "--json")
    assert site.topdp(*ask).code == 0  # no process has written a status
    facts = {"process": os.getpid(), "written": time.time(), "round": 3, "rounds": 9, "budget": 1.0}
    mine = agent_status.process_birth(os.getpid())

    def code(**changes):
        state = {"state": "waits", "begun": mine, **facts, **changes}
        agent_status.ProcessStatus(**state).write(tmp_path / "state")
        return site.topdp(*ask).code

    assert code() == 0
    assert code(begun=f"{agent_status._machine_id()}0") == 6  # it was killed
    assert code(written=time.time() - 60) == 6  # it hangs
    for ended in (0, 2, 3, 4):
        assert code(state="ended", code=ended) == ended


def test_a_manifest_names_no_data_set_unless_it_is_told_to(site):
    for more, name in (([], "own"), (["--set", "data.name=fashion-mnist"], "fashion-mnist")):
        Path("new.toml").unlink(missing_ok=True)
        assert site.create(*more).code == 0
        assert tomllib.loads(Path("new.toml").read_text())["run"]["data"]["name"] == name


def test_records_in_another_order_after_a_restart_exit_with_5(site, tmp_path):
    """With cyclic batches, the records of each batch must stay the same."""
    changes = ["rounds=3", "topology.agents=2", "privacy.guarantee=worst-case", "data.batch={cycle=20}"]
    cards = [site.folder / name / "card.toml" for name in ("ada", "bob")]
    terms, _, _ = federation_manifest.create_manifest(
        cards, "240", config.read(changes=changes), "ada-bob", {}
    )
    terms.write(site.folder / "manifest.toml")
    ledger = Ledger(tmp_path / "state", terms.hash, "ada")
    start_choices.expect_record_order(ledger, "another")
    ledger.release(0, ReleaseCost(0.25, 0.5, 0.1), {"bob": b"row"}, b"state")
    ledger.close()
    done = site.start()
    assert done.code == 5 and "in the order of the first start" in one_line(done)
    with sqlite3.connect(tmp_path / "state" / "ledger.sqlite") as db:
        db.execute("DELETE FROM meta WHERE key = 'order'")
    db.close()
    done = site.start()
    assert done.code == 4 and "journal: order" in one_line(done)


def test_status_reports_the_spent_epsilon_and_its_guarantee(site, tmp_path):
    """After a departure from the plan, the released rows cost what the `worst-case` answer states."""
    ledger = Ledger(tmp_path / "state", "federation", "ada", guarantee="adaptive")
    ledger.release(0, ReleaseCost(0.25, 0.5, 0.1), {"bob": b"row"}, b"state")
    ledger.stop_data(1)
    ask = ("agent", "status", "--state", "state", "--json")
    found = json.loads(site.topdp(*ask).out)
    assert (found["epsilon"], found["charged_by"], found["stopped"]) == (0.25, "adaptive", 1)
    ledger.note_departure("round 1: nothing from bob")
    ledger.close()
    found = json.loads(site.topdp(*ask).out)
    assert (found["epsilon"], found["charged_by"]) == (0.5, "worst-case")


def test_folders_of_images_cannot_number_the_classes_of_a_federation(site):
    """The number of a class depends on the folders of a site: dog is 1 after cat, but 2 after ant and bee."""
    for name in ("cat", "dog"):
        (site.folder / "pictures" / name).mkdir(parents=True)
        for number in range(2):
            Image.new("L", (8, 8), number).save(site.folder / "pictures" / name / f"{number}.png")
    done = site.start("--data", site.folder / "pictures")
    assert done.code == 5 and "classes of images in the manifest" in one_line(done)


def test_a_run_above_the_site_budget_exits_with_3_before_it_sends_anything(site, monkeypatch):
    """Records belong to the site: another federation, a new state folder and a copy all count."""
    place = ("--site", "book")
    show = ("agent", "budget", "show", *place, "--json")
    assert site.topdp("agent", "budget", "set", *place, "--epsilon", "1.5").code == 0
    grpc = "topdp.agents.wire.grpc_transport.GrpcTransport"
    monkeypatch.setattr(grpc, lambda *_, **__: Answers(ReplyCode.OTHER_TERMS))
    assert site.start(*place).code == 4  # a wrong manifest: nothing is charged, and nothing reserved
    assert json.loads(site.topdp(*show).out)["runs"] == []
    closed = site.topdp("agent", "budget", "close", *place, "--state", "state", "--json")
    assert json.loads(closed.out) == {"epsilon": 0.0}
    shutil.rmtree("state")
    monkeypatch.setattr(grpc, lambda *_, **__: Agrees(ReplyCode.OK))
    for _ in range(2):  # ended after its first charge, and started again: one reservation
        assert site.start(*place).code == 4
        (run,) = json.loads(site.topdp(*show).out)["runs"]
        assert (run["epsilon"], run["final"], run["records"], run["agent"]) == (1.0, False, 240, "ada")
    shutil.copytree("state", "copy")
    shutil.rmtree("state")
    for folder in ("state", "copy"):  # a reservation of a deleted folder stays
        done = site.start(*place, "--state", folder)
        assert done.code == 3 and "within the site's 1.5, got 2: 1 earlier runs" in one_line(done)
    assert site.start(*place, "--state", "other", "--epsilon", "0.5").code == 4
    closed = site.topdp("agent", "budget", "close", *place, "--state", "other", "--json")
    spent = json.loads(closed.out)["epsilon"]
    found = json.loads(site.topdp(*show).out)
    assert 0 < spent < 0.5 and found["limit"] == {"epsilon": 1.5, "delta": None}
    assert found["epsilon"] == {"add-remove": pytest.approx(1.0 + spent)}
    assert "reserved" in site.topdp(*show[:-1]).out
    done = site.topdp("agent", "budget", "set", *place)
    assert done.code == 2 and "or --none" in one_line(done)
    assert site.topdp("agent", "budget", "set", *place, "--none").code == 0 and site.start(*place).code == 4


def test_the_site_budget_is_not_restored_with_the_identity_folder(site, monkeypatch, tmp_path):
    """Both folders are put back to the day of `init`: what was spent is still known, in another folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    grpc = "topdp.agents.wire.grpc_transport.GrpcTransport"
    monkeypatch.setattr(grpc, lambda *_, **__: Agrees(ReplyCode.OK))
    identity_folder = ("--identity", site.folder / "ada")
    assert site.topdp("agent", "budget", "set", *identity_folder, "--epsilon", "1.5").code == 0
    shutil.copytree(site.folder / "ada", "backup")
    assert site.start().code == 4
    shutil.rmtree("state")
    shutil.rmtree(site.folder / "ada")
    shutil.move("backup", site.folder / "ada")
    done = site.start()
    assert done.code == 3 and "within the site's 1.5, got 2: 1 earlier runs" in one_line(done)


def test_a_site_budget_of_an_earlier_version_is_taken_along_once(site, monkeypatch, tmp_path):
    former = site.folder / "ada" / "site"
    show = ("agent", "budget", "show", "--identity", site.folder / "ada", "--json")
    assert site.topdp("agent", "budget", "set", "--site", former, "--epsilon", "0.5").code == 0
    for home in ("home", "home"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / home))
        assert json.loads(site.topdp(*show).out)["limit"]["epsilon"] == 0.5
        assert site.start().code == 3
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))  # another machine
    done = site.start()
    assert done.code == 2 and "Name its folder with --site" in one_line(done)
    assert (
        site.start("--site", tmp_path / "home" / "topdp" / next((tmp_path / "home/topdp").iterdir())).code
        == 3
    )


def test_where_no_other_folder_can_be_written_the_site_budget_is_in_the_identity_folder(
    site, monkeypatch, tmp_path
):
    (tmp_path / "home").write_text("a file")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(
        "topdp.agents.wire.grpc_transport.GrpcTransport", lambda *_, **__: Agrees(ReplyCode.OK)
    )
    done = site.start()
    assert done.code == 4 and "Name another one with --site" in " ".join(done.err.split())
    assert (site.folder / "ada" / "site" / "site.sqlite").exists()


def test_a_seeded_run_makes_the_site_budget_infinite(site, monkeypatch):
    monkeypatch.setattr(
        "topdp.agents.wire.grpc_transport.GrpcTransport", lambda *_, **__: Agrees(ReplyCode.OK)
    )
    assert site.start("--seeded", command="rehearse").code == 4
    shown = site.topdp("agent", "budget", "show", "--identity", site.folder / "ada", "--json")
    assert json.loads(shown.out)["epsilon"] == {"add-remove": None}
