"""Fixtures for tests of data: an empty cache for every test, and small substitutes for the data sets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from data_files import small_arrays

from topdp.data._dataset_decoding import Arrays
from topdp.data.catalogue import CATALOGUE


@pytest.fixture(autouse=True)
def own_cache(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache for every test; tests marked `network` use the real one."""
    if request.node.get_closest_marker("network") is None:
        monkeypatch.setenv("TOPDP_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("TOPDP_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Arrays]:
    """`stand_in(name, **changes)` puts a small data set into the catalogue, by default without sources."""

    def put(name: str, given: Arrays | None = None, **changes: Any) -> Arrays:
        arrays = small_arrays(name) if given is None else given
        entry = replace(
            CATALOGUE[name],
            shapes={key: array.shape for key, array in arrays.items()},
            sha256={key: hashlib.sha256(array.tobytes()).hexdigest() for key, array in arrays.items()},
            **{"addresses": (), "packages": (), "installed": (), **changes},
        )
        monkeypatch.setitem(CATALOGUE, name, entry)
        return arrays

    return put
