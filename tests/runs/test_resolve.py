"""Tests that a resolved run contains no `auto`. Each run is resolved once: see test_run_outline."""

from __future__ import annotations

import dataclasses

import pytest

from topdp.runs import config
from topdp.runs.resolve import resolve

METHODS = [
    ["method.name=correlated"],
    ["method.name=muffliato"],
    ["method.name=top", "robust.rule=clipped"],
    ["method.name=central"],
]


@pytest.mark.parametrize("changes", METHODS, ids=lambda changes: changes[0])
def test_a_resolved_run_contains_no_auto(changes):
    graph = ["topology.agents=6", "topology.kind=ring", "rounds=2"]
    resolved = resolve(config.read(changes=[*graph, *changes]))
    fields = {field.name: getattr(resolved, field.name) for field in dataclasses.fields(resolved)}
    assert "auto" not in [value for name, value in fields.items() if isinstance(value, str)]
    assert "auto" not in str({name: value for name, value in fields.items() if name != "config"})
    chosen = resolved.config.method
    assert all(getattr(chosen, key) != "auto" for key in resolved.method.tuned)
