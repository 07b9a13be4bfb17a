"""By which code numbers are made: compared between machines before one of them makes any for another.

**Guarantees.** An ε is as good as the code that computed it. Two machines agree here if every source file of
topdp is the same, byte for byte, and the packages that plans, noise and accounts are computed by have the
same versions. Builds of one version for another device (`2.9+cpu`) count as the same. Needs no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import topdp

COMPUTE = ("torch", "numpy", "scipy", "networkx", "dp-accounting")
SOURCE = "source of topdp"


@cache
def _of_topdp() -> dict[str, str]:
    folder = Path(topdp.__file__).parent
    sha = hashlib.sha256()
    for file in sorted(folder.rglob("*.py")):
        content = file.read_bytes()
        sha.update(f"{file.relative_to(folder).as_posix()} {len(content)} ".encode())
        sha.update(content)
    return {"topdp": topdp.__version__, SOURCE: sha.hexdigest()[:16]} | {
        name: _version(name) for name in COMPUTE
    }


def fingerprint(modules: tuple[str, ...] = ()) -> dict[str, str]:
    """Of topdp, of what it computes with, and of the files of further modules.

    >>> sorted(fingerprint())[:2]
    ['dp-accounting', 'networkx']
    """
    return {**_of_topdp(), **{f"module {name}": _of_module(name) for name in modules}}


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """What differs, in words; empty where nothing does.

    >>> difference({"topdp": "0.2.0", "torch": "2.9"}, {"topdp": "0.1.0", "torch": "2.9"})
    'topdp is 0.1.0 there, 0.2.0 here'
    """
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    return ", ".join(f"{name} is {there.get(name, 'missing')} there, {here.get(name)} here" for name in names)


def _version(package: str) -> str:
    try:
        return version(package).partition("+")[0]
    except PackageNotFoundError:
        return "missing"


def _of_module(name: str) -> str:
    """Of the file that a module would be read from."""
    try:
        found = find_spec(name)
        content = b"" if found is None or found.origin is None else Path(found.origin).read_bytes()
    except (ImportError, ValueError, OSError):
        content = b""
    return hashlib.sha256(content).hexdigest()[:16] if content else "missing"
