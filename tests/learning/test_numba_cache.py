"""Compiled loops cached on disk give the same results with a damaged cache or without a cache."""

import importlib
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from zipfile import ZipFile

import pytest

SOURCE = """
from topdp.learning.numba_cache import compiled

@compiled
def doubled(value):
    return 2 * value
"""


@pytest.fixture
def loop(tmp_path):
    """What makes the same loop as another process would."""
    file = tmp_path / "kept_loop.py"
    file.write_text(SOURCE)

    def load():
        spec = spec_from_file_location("kept_loop", file)
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module.doubled

    return load


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [b"", b"no machine code", None], ids=["empty", "other bytes", "cut"])
def test_damaged_cache_files_are_compiled_again(loop, ending, left):
    first = loop()
    assert first(3) == 6
    files = list(Path(first._cache.cache_path).glob(f"kept_loop*.{ending}"))
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:40] if left is None else left)
    assert loop()(3) == 6
    again = loop()
    assert again(3) == 6 and sum(again.stats.cache_hits.values()) == 1  # and was kept anew


def test_a_loop_that_cannot_be_cached_still_runs(loop, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    assert loop()(3) == 6


def test_without_a_folder_every_process_compiles_for_itself(loop, monkeypatch):
    def forbidden(*arguments):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("numba.core.caching._CacheLocator.ensure_cache_path", forbidden)
    assert loop()(3) == 6


def test_a_loop_is_compiled_again_after_a_loop_it_calls_has_changed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    inner, outer = tmp_path / "inner_loop.py", tmp_path / "outer_loop.py"
    begin = "from topdp.learning.numba_cache import compiled\n"
    outer.write_text(begin + "from inner_loop import f\n\n@compiled\ndef g(x):\n    return f(x) + 1\n")
    for factor, expected in ((2, 7), (30, 91)):  # of another length: clocks of files may be coarse
        inner.write_text(begin + f"\n@compiled\ndef f(x):\n    return {factor} * x\n")
        for name in ("inner_loop", "outer_loop"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        assert importlib.import_module("outer_loop").g(3) == expected


def test_a_loop_in_an_archive_is_compiled(tmp_path, monkeypatch):
    with ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("packed_loop.py", SOURCE)
    monkeypatch.syspath_prepend(tmp_path / "packed.zip")
    assert importlib.import_module("packed_loop").doubled(3) == 6
    sys.modules.pop("packed_loop")
