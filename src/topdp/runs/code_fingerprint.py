"""A fingerprint of the code that computes; two machines compare it before one computes for the other.

**Guarantees.** An ε is only as good as the code that computed it. Two machines have the same fingerprint if
every source file of topdp is the same, byte for byte, and the packages that compute plans, noise and accounts
have the same versions. Builds of one version for different devices (`2.9+cpu`) count as the same version.
Needs no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import topdp

COMPUTE = ("torch", "numpy", "scipy", "networkx", "dp-accounting")
SOURCE = "source of topdp"


def fingerprint(modules: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the versions of topdp and of the packages that it computes with, and digests of source code.

    The digests are those of topdp's source files and of the file of each module in `modules`.

    >>> sorted(fingerprint())[:2]
    ['dp-accounting', 'networkx']
    """
    folder = Path(topdp.__file__).parent
    files = sorted(folder.rglob("*.py"))
    sources = [file.relative_to(folder).as_posix().encode() + b" " + file.read_bytes() for file in files]
    return {
        "topdp": topdp.__version__,
        SOURCE: _digest(b"\0".join(sources)),
        **{name: _version(name) for name in COMPUTE},
        **{f"module {name}": _of_module(name) for name in modules},
    }


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return a text that names each difference between two fingerprints; empty if there is none.

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
    """Return the digest of the file from which the module `name` would be imported, or "missing"."""
    try:
        module = find_spec(name)
        return _digest(Path(module.origin).read_bytes()) if module and module.origin else "missing"
    except (ImportError, ValueError, OSError):
        return "missing"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
