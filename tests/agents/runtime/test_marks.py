"""Tests of rollback marks: a release is marked before it is sent, even after a crash."""

import asyncio
import contextlib
import errno
import json
import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from history import Crash, Wire, abandon, federation, on_virtual_time, sharing

from topdp.agents.agreement.run_marks import RollbackMark, RunSecret
from topdp.agents.development.development_hooks import Failpoints
from topdp.agents.ledger.ledger_database import LEDGER_FILE
from topdp.agents.ledger.ledger_entries import TamperedError
from topdp.errors import InputError, TrustError, UnavailableError

pytestmark = pytest.mark.usefixtures("quick")
MAKERS = {"own": federation, "shared": sharing}


def marked(made):
    """The last marked rounds beside ada's key: of her ledger, and of the run key."""
    place = RunSecret(made.private(0).folder, made.setup.manifest.hash).folder
    return [
        json.loads((place / name).read_text())["round"]
        for name in ("books", "mark")
        if (place / name).exists()
    ]


async def killed(made, wire, copy):
    """ada is killed between the ledger and the mark of round 2; `copy` is her state folder before it."""
    others = [made.agent(number, wire.transport(made.names[number])) for number in (1, 2)]
    tasks = [asyncio.create_task(agent.run()) for agent in others]
    transport = wire.transport("ada")

    def die(where):
        transport.end()
        raise Crash(where)

    ada = made.agent(0, transport, Failpoints("after_ledger:3", die))
    release = ada.ledger.release

    def copied(round, *facts, **more):
        if round == 2:
            ada.ledger.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copytree(made.state(0), copy)
        return release(round, *facts, **more)

    ada.ledger.release = copied
    with pytest.raises(Crash):
        await ada.run()
    return tasks


@pytest.mark.parametrize("noise", MAKERS)
def test_after_a_crash_before_the_mark_it_is_written_before_the_row_is_sent(tmp_path, noise):
    made = MAKERS[noise](tmp_path / "run", agents=3, rounds=6)

    async def scene():
        wire = Wire()
        tasks = await killed(made, wire, tmp_path / "copy")
        assert set(marked(made)) == {1}
        again = made.agent(0, wire.transport("ada"))
        assert set(marked(made)) == {2}  # the agent has not begun to run, so nothing was sent yet
        abandon(again)
        shutil.rmtree(made.state(0))
        shutil.copytree(tmp_path / "copy", made.state(0))
        with pytest.raises(TrustError, match="old copy"):
            made.agent(0, wire.transport("ada"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    on_virtual_time(scene())


@pytest.mark.parametrize("change", ["UPDATE state SET body = X'00'", "DELETE FROM inbox WHERE round = 0"])
def test_no_agent_starts_on_a_ledger_that_was_tampered_with(tmp_path, change):
    """All charges are unchanged, but the next one would include what was changed."""
    made = federation(tmp_path)

    async def live():
        wire = Wire()
        agents = [made.agent(number, wire.transport(name)) for number, name in enumerate(made.names)]
        await asyncio.gather(*(agent.run() for agent in agents))

    on_virtual_time(live())
    with contextlib.closing(sqlite3.connect(made.state(0) / LEDGER_FILE)) as db, db:
        db.execute(change)
    for _ in range(2):  # the lock is free again
        with pytest.raises(TamperedError):
            made.agent(0, Wire().transport(made.names[0]))


@pytest.mark.parametrize("fault", [errno.EMFILE, errno.EACCES])
def test_a_mark_that_cannot_be_read_is_not_the_mark_of_another_agent(tmp_path, monkeypatch, fault):
    mark = RollbackMark(tmp_path, "00" * 32)
    mark.note("ledger", 1, "head")

    def unreadable(*_, **__):
        raise OSError(fault, os.strerror(fault))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", unreadable)
        with pytest.raises(UnavailableError, match="The ledger keeps every charge"):
            mark.note("ledger", 2, "head")
    mark.note("ledger", 2, "head")
    RollbackMark(tmp_path, "00" * 32).path.unlink()  # somebody has removed it: this agent writes it again
    mark.note("ledger", 3, "head")
    another = RollbackMark(tmp_path, "00" * 32)
    another.resume("another ledger", -1, lambda head: False)
    another.note("another ledger", 0, "head")
    with pytest.raises(TrustError, match="two agents run under this manifest"):
        mark.note("ledger", 4, "head")


def test_a_mark_that_cannot_be_written_says_what_to_do_and_nothing_about_rows(tmp_path):
    (tmp_path / "runs").write_text("")  # a file where a folder should be
    mark = RollbackMark(tmp_path, "00" * 32)
    with pytest.raises(
        InputError, match=r"mark of round 7, got: [^.]*runs[^.]*\. The mark .*keeps the charge"
    ) as error:
        mark.note("ledger", 7, "head")
    assert "sent" not in str(error.value)
