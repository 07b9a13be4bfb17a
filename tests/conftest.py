"""Read before any test."""

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from topdp import cli

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, which torch may do on its own


@pytest.fixture
def topdp(monkeypatch, capsys):
    """The command line in this process: exit code, stdout, stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["topdp", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=out, err=err)

    return call
