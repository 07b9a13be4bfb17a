"""Fixtures and settings of all tests."""

import atexit
import gc
import os
import shutil
import sys
import tempfile
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, settings

pytest_plugins = ["browser"]

# The time of an example depends on the load of the machine.
settings.register_profile("topdp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("topdp")

# A console keeps the width that it had when it was created; tests set other widths.
os.environ.pop("COLUMNS", None)

# Where agents of tests keep their site budgets.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="topdp-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, which torch may do itself


def pytest_collection_finish():
    """Keep imported objects out of garbage collection, and out of the search for leftover objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def topdp(monkeypatch, capsys):
    """Call the command line in this process; returns exit code, stdout and stderr."""
    from topdp.cli import app

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["topdp", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        out, err = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=out, err=err)

    return call
