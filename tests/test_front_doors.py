"""Every name that a public package exports has a docstring with an example that runs."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module

import pytest

PACKAGES = ["topdp", "topdp.plan", "topdp.topology", "topdp.protocols", "topdp.privacy", "topdp.data"]
"""The public packages."""

EXPORTS = [(package, name) for package in PACKAGES for name in import_module(package).__all__]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_states_its_purpose_and_exports_each_name_once(package):
    module = import_module(package)
    assert module.__doc__ and len(module.__doc__.split()) > 10
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize(("package", "name"), EXPORTS)
def test_every_exported_name_has_an_example_that_runs(package, name):
    """The example's namespace has only the exported names; it imports everything else."""
    module = import_module(package)
    value = getattr(module, name)
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return  # tables and aliases are documented where they are used
    assert inspect.getdoc(value), f"{package}.{name} has no docstring"
    assert ">>>" in value.__doc__, f"{package}.{name} shows no example"
    exported = {each: getattr(module, each) for each in module.__all__}
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    for example in doctest.DocTestFinder().find(value, name, globs=exported):
        output: list[str] = []
        assert runner.run(example, out=output.append).failed == 0, "".join(output)
