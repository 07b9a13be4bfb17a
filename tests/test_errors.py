"""The hierarchy of errors, and how commands report them: one line and an exit code, or a traceback."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import topdp as package
from builders import blobs_file
from topdp import errors
from topdp.errors import ExitCode, InputError, TopdpError, translate_memory_errors

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

MODELS = """
import torch

class Raises(torch.nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.linear = torch.nn.Linear(16, classes)

    def forward(self, x):
        raise ValueError("a mistake of my own")
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "my_models.py").write_text(MODELS)
    data = blobs_file(tmp_path / "blobs.npz", 60)
    few = ["topology.agents=3", "topology.kind=ring", "rounds=2", "privacy.sigma=1.0", f'data.name="{data}"']
    return [word for change in few for word in ("--set", change)]


def command(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "topdp", *map(str, arguments)], cwd=folder, capture_output=True, text=True
    )


@pytest.mark.slow
def test_a_users_model_that_raises_ends_with_its_traceback(own, tmp_path):
    done = command(tmp_path, "run", *own, "--set", "model.name=my_models:Raises")
    assert done.returncode == ExitCode.UNEXPECTED
    assert "Traceback" in done.stderr and 'raise ValueError("a mistake of my own")' in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["version"], ExitCode.DONE),
        (["run", "--set", "rounds=-1"], ExitCode.INPUT),
        (["run", "--no-such-option"], ExitCode.INPUT),
        (["agent", "init", "--name", "two words"], ExitCode.INPUT),
        (["agent", "init", "--name", "ada", "--address", "ada.example.org:99999"], ExitCode.INPUT),
        (["run", "--set", "data.name=nowhere.npz"], ExitCode.DATA),
    ],
)
def test_foreseen_errors_have_one_line_and_their_code(arguments, code, topdp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = topdp(*arguments)
    assert done.code == code, done.err
    assert "Traceback" not in done.err


def test_an_unexpected_error_in_topdp_is_not_caught(topdp, monkeypatch):
    def broken():
        raise ValueError("not said on purpose")

    monkeypatch.setattr("topdp.data.available", broken)
    with pytest.raises(ValueError, match="not said on purpose"):
        topdp("data", "list")


def test_documented_exit_codes_are_those_of_the_package():
    table = PAGE.read_text(encoding="utf-8").split("| exit code |")[1].split("\n\n")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == sorted(ExitCode)


def test_each_code_but_done_and_unexpected_has_one_base():
    bases = [one for _, one in inspect.getmembers(errors, inspect.isclass) if TopdpError in one.__bases__]
    raised = sorted(base.code for base in bases)
    assert raised == sorted(set(ExitCode) - {ExitCode.DONE, ExitCode.UNEXPECTED})


@pytest.mark.parametrize(
    ("error", "begins"),
    [
        (MemoryError(), "Not enough memory. Use fewer"),
        (MemoryError("Unable to allocate 8 TiB."), "Not enough memory: Unable to allocate 8 TiB. Use fewer"),
        (RuntimeError("CUDA out of memory.\nTried"), "Not enough memory: CUDA out of memory. Use fewer"),
    ],
)
def test_too_little_memory_is_wrong_input(error, begins):
    with pytest.raises(InputError, match=f"^{re.escape(begins)}"), translate_memory_errors():
        raise error


def test_wrong_input_is_a_value_error():
    assert issubclass(InputError, ValueError)


def test_every_error_belongs_to_the_family():
    """No package raises plain errors, except ValueError for parsers of peers or users."""

    def family(kind):
        return {kind}.union(*(family(child) for child in kind.__subclasses__()))

    for module in pkgutil.walk_packages(package.__path__, "topdp."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {kind for kind in family(Exception) if kind.__module__.startswith("topdp.")}
    outside = {kind.__name__ for kind in ours if not issubclass(kind, TopdpError | Warning)}
    # These never leave their package: another module catches each of them.
    assert outside == {
        "Cancelled",
        "Unreachable",
        "LinkEnded",
        "GreetingError",
        "NotFoldedError",
        "NoticeError",
        "BatchAccessError",
        "UncertifiedError",
        "UnsuitedError",
        "_DamagedError",
        "_MismatchError",
    }
    assert TopdpError in ours
