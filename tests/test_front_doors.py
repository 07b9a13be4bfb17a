"""Front doors: every name that a package hands out says what it is, and shows it by an example that runs."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module

import pytest

PACKAGES = ["topdp", "topdp.plan", "topdp.topology", "topdp.protocols", "topdp.privacy", "topdp.data"]
"""Whose `__all__` is held to it."""

EXPORTS = [(package, name) for package in PACKAGES for name in import_module(package).__all__]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_front_door_says_what_the_room_is_for_and_names_everything_once(package):
    room = import_module(package)
    assert room.__doc__ and len(room.__doc__.split()) > 10
    assert len(set(room.__all__)) == len(room.__all__)
    assert all(hasattr(room, name) for name in room.__all__)


@pytest.mark.parametrize(("package", "name"), EXPORTS)
def test_every_exported_name_has_an_example_that_runs(package, name):
    """With nothing at hand but what the package hands out: what else an example needs it imports."""
    room = import_module(package)
    value = getattr(room, name)
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return  # a table or an alias: what it holds is documented where it is used
    assert inspect.getdoc(value), f"{package}.{name} has no docstring"
    assert ">>>" in value.__doc__, f"{package}.{name} shows no example"
    handed_out = {each: getattr(room, each) for each in room.__all__}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for example in doctest.DocTestFinder().find(value, name, globs=handed_out):
        said: list[str] = []
        assert runner.run(example, out=said.append).failed == 0, "".join(said)
