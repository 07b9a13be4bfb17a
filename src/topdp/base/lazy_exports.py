"""Let a package import each name that it exports only when the name is first used, to keep imports cheap.

Such a package also defines `__dir__`, so that interactive sessions list its names before their first use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_exports(package: str, exports: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return `__getattr__` for `package`. `exports` maps its modules to the names that they export."""
    modules = {name: module for module, names in exports.items() for name in names}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return get
