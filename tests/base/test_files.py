"""Atomic writes and locks: a write leaves the old file or the new one; a lock excludes other processes."""

import errno
import os
import subprocess
import sys

import pytest

from topdp.base import files
from topdp.base.files import (
    FileError,
    LockHeldError,
    atomic_path,
    exclusive_lock,
    make_folder,
    write_atomically,
)
from topdp.errors import ExitCode


def test_a_file_is_replaced_atomically(tmp_path):
    file = tmp_path / "a.json"
    write_atomically(file, "first")
    write_atomically(file, b"second")
    assert file.read_bytes() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_failing_writer_leaves_the_old_file_and_no_temporary_file(tmp_path):
    file = tmp_path / "a.json"
    write_atomically(file, "old")
    with pytest.raises(ZeroDivisionError), atomic_path(file) as beside:
        beside.write_text("half")
        raise ZeroDivisionError
    assert file.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_permissions_are_the_requested_ones_less_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "public", "x")
        write_atomically(tmp_path / "private", "x", mode=0o600)
    finally:
        os.umask(before)
    assert (tmp_path / "public").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o600


def test_write_errors_name_path_and_reason(tmp_path):
    write_atomically(tmp_path / "file", "x")
    with pytest.raises(FileError, match=r"Could not write .*file/a: Not a directory") as told:
        write_atomically(tmp_path / "file" / "a", "x")
    assert told.value.code is ExitCode.INPUT
    with pytest.raises(FileError, match="Could not create the folder"):
        make_folder(tmp_path / "file" / "folder")


@pytest.mark.parametrize("name", ["folder", "new_file"])
def test_one_process_holds_a_lock_which_ends_with_that_process(tmp_path, name):
    (tmp_path / "folder").mkdir()
    path = tmp_path / name
    code = "import sys; from pathlib import Path; from topdp.base.files import exclusive_lock\n"
    code += "with exclusive_lock(Path(sys.argv[1])): print('locked', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(LockHeldError, match="another process is using it"), exclusive_lock(path):
            pass
        other.kill()
    with exclusive_lock(path) as is_exclusive:
        assert is_exclusive
    with exclusive_lock(path) as is_exclusive:
        assert is_exclusive
    assert list((tmp_path / "folder").iterdir()) == []


def test_on_a_file_system_without_locks_nothing_is_locked(tmp_path, monkeypatch):
    def without_locks(descriptor, blocking):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(files, "lock_descriptor", without_locks)
    with exclusive_lock(tmp_path) as first, exclusive_lock(tmp_path) as second:
        assert not first and not second


def test_a_lock_on_a_path_that_cannot_be_opened_names_the_path(tmp_path):
    with (
        pytest.raises(FileError, match=r"Could not open .*missing/file"),
        exclusive_lock(tmp_path / "missing" / "file"),
    ):
        pass
