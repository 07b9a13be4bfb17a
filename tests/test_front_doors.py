"""Every name that a public package exports has a docstring with an example that runs."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module

import numpy as np
import pytest
import torch

import topdp

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


@pytest.mark.parametrize("package", PACKAGES)
def test_interactive_sessions_list_what_a_package_exports(package):
    module = import_module(package)
    assert set(module.__all__) <= set(dir(module))
    assert not [name for name in dir(module) if name.startswith("_") and not name.startswith("__")]


def is_own(value):
    """Whether `value` is a function that topdp defines, and not one that Python adds to a class."""
    return inspect.isfunction(value) and value.__module__.startswith("topdp")


def functions_of(value):
    """The functions that users call: `value` itself, or the public methods and the constructor of a class."""
    if not inspect.isclass(value):
        return {"": value}
    names = [name for name in vars(value) if not name.startswith("_") or name in ("__init__", "__call__")]
    methods = {name: inspect.getattr_static(value, name) for name in names}
    unwrapped = {
        name: getattr(method, "fget", None) or getattr(method, "__func__", method)
        for name, method in methods.items()
    }
    return {name: method for name, method in unwrapped.items() if is_own(method)}


@pytest.mark.parametrize(("package", "name"), EXPORTS)
def test_every_exported_function_has_complete_type_hints(package, name):
    value = getattr(import_module(package), name)
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return
    for method, function in functions_of(value).items():
        signature = inspect.signature(function)
        untyped = [
            parameter.name
            for parameter in signature.parameters.values()
            if parameter.annotation is parameter.empty and parameter.name not in ("self", "cls")
        ]
        assert not untyped and signature.return_annotation is not signature.empty, (name, method, untyped)


def test_what_a_session_prints_is_short_and_has_no_records():
    inputs = torch.full((4, 30, 3), 0.123)
    shards = topdp.Shards.from_arrays([(part, torch.arange(30) % 2) for part in inputs])
    result = topdp.train(
        torch.nn.Linear(3, 2), shards, topdp.topology.ring(4), method="top-dp", rounds=3, clip=1.0
    )
    whole = np.full((9, 3), 0.123)
    dataset = topdp.data.Dataset(
        name="own", train_inputs=whole, train_targets=whole, test_inputs=None, test_targets=None, classes=None
    )
    assert repr(shards) == (
        "Shards(4 agents, 120 records (30 to 30 per agent), inputs (3,) float32, 2 classes, 0 test records)"
    )
    assert repr(dataset) == "Dataset('own', 9 records, inputs (3,) float64, 0 test records)"
    assert repr(result).startswith("Result(top-dp, 4 agents, 3 rounds, ε adaptive 1, δ 1e-05, ")
    assert repr(result.privacy).endswith("δ: 1e-05; guarantee: adaptive)")
    assert repr(result.plan) == "Plan('top-sync', agents=4, rows=12, releases=4)"
    for value in (shards, dataset, result, result.privacy, result.plan, result.plan.source, result.predictor):
        assert "0.12" not in repr(value) and len(repr(value)) < 300 and "\n" not in repr(value)
    page = result._repr_html_()
    assert "ε adaptive" in page and "guarantee" in page and len(page) < 2000 and "<script" not in page
