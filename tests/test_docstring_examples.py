"""The examples in the docstrings of all modules, internal ones included, print what they show."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import topdp

NOT_IMPORTED: set[str] = {"topdp.__main__"}
"""Modules that run the program, or need a GPU or an optional package."""

MODULES = [
    module.name
    for module in pkgutil.walk_packages(topdp.__path__, "topdp.")
    if module.name not in NOT_IMPORTED
]
PACKAGES = sorted({".".join(name.split(".")[:2]) for name in MODULES})


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_every_example_of_a_package_prints_what_its_docstring_shows(package):
    """An example may use the names of its module and those that its package exports."""
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    front = import_module(package)
    exported = {name: getattr(front, name) for name in getattr(front, "__all__", ())}
    output: list[str] = []
    for name in MODULES:
        if name == package or name.startswith(f"{package}."):
            module = import_module(name)
            for example in doctest.DocTestFinder().find(module, name, globs=exported | vars(module)):
                runner.run(example, out=output.append)
    assert not output, "".join(output)
