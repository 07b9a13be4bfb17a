"""Resolving a configuration: it happens once per run, and a resolved run contains no `auto`."""

from __future__ import annotations

import dataclasses

import pytest

from builders import blobs_file
from topdp.runs import config, run, run_outline
from topdp.runs.resolve import resolve

METHODS = [
    ["method.name=correlated"],
    ["method.name=muffliato"],
    ["method.name=top", "robust.rule=clipped"],
    ["method.name=central"],
]


def test_a_run_resolves_its_configuration_once(tmp_path, monkeypatch):
    blobs_file(tmp_path / "blobs.npz", 120)
    calls, real = [], run_outline.method_of
    monkeypatch.setattr(run_outline, "method_of", lambda config: calls.append(config) or real(config))
    changes = [
        f'data.name="{tmp_path / "blobs.npz"}"', "topology.agents=6", "topology.kind=ring", "rounds=2",
        "privacy.guarantee=worst-case", "method.name=plain",
    ]  # fmt: skip
    run.run(config.read(changes=changes), tmp_path / "run")
    assert len(calls) == 1


@pytest.mark.parametrize("changes", METHODS, ids=lambda changes: changes[0])
def test_a_resolved_run_contains_no_auto(changes):
    graph = ["topology.agents=6", "topology.kind=ring", "rounds=2"]
    resolved = resolve(config.read(changes=[*graph, *changes]))
    fields = {field.name: getattr(resolved, field.name) for field in dataclasses.fields(resolved)}
    assert "auto" not in [value for name, value in fields.items() if isinstance(value, str)]
    assert "auto" not in str({name: value for name, value in fields.items() if name != "config"})
    chosen = resolved.config.method
    assert all(getattr(chosen, key) != "auto" for key in resolved.method.tuned)
