"""Read before any test."""

import gc
import os
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, settings

pytest_plugins = ["browser"]

# How long an example takes says nothing on a busy machine.
settings.register_profile("topdp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("topdp")

# Consoles keep the width that they find when they are made; tests set their own.
os.environ.pop("COLUMNS", None)

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, which torch may do on its own


def pytest_collection_finish():
    """What was imported stays, and nobody looks through it again: neither the collector nor `left_over`."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def topdp(monkeypatch, capsys):
    """The command line in this process: exit code, stdout, stderr."""
    from topdp.cli import app

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["topdp", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        out, err = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=out, err=err)

    return call
