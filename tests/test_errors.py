"""The family of errors: one base for each exit code, and the codes that docs/configuration.md promises."""

import inspect
import re
from pathlib import Path

from topdp import errors
from topdp.errors import ExitCode, InputError, TopdpError

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"


def test_every_documented_code_is_one_of_ours_and_every_one_of_ours_is_documented():
    table = PAGE.read_text(encoding="utf-8").split("| exit code |")[1].split("\n\n")[0]
    assert [int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)] == sorted(ExitCode)


def test_each_code_but_done_and_unexpected_has_one_base():
    bases = [one for _, one in inspect.getmembers(errors, inspect.isclass) if TopdpError in one.__bases__]
    raised = sorted(base.code for base in bases)
    assert raised == sorted(set(ExitCode) - {ExitCode.DONE, ExitCode.UNEXPECTED})


def test_wrong_input_can_be_caught_as_pythons_own():
    assert issubclass(InputError, ValueError)
