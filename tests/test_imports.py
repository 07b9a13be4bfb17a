"""Arrows between rooms point upwards only: the imports in src/topdp against the list in docs/design.md."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "topdp"

WITHOUT_TORCH = [
    "topdp",
    "topdp.privacy",
    "topdp.report",
    "topdp.plan",
    "topdp.topology",
    "topdp.protocols",
    "topdp.config",
    "topdp.result",
    "topdp.build",
    "topdp.planning",
    "topdp.cli",
]


def listed() -> tuple[list[list[str]], list[str]]:
    """The rooms in order, each with its files or its folder, and the paths of the files inside folders."""
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\nsrc/topdp/\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    rooms: list[list[str]] = []
    inner = []
    for line in block.splitlines():
        names = re.match(r"( +)([\w.]+/?(?:, [\w.]+/?)*)", line)
        assert names, f"Expected a room in the list of docs/design.md, got {line!r}."
        if len(names[1]) == 2:
            rooms.append(names[2].split(", "))
        else:
            inner.append(rooms[-1][0] + names[2])
    return rooms, inner


ROOMS, INNER = listed()
PLACE = {
    name.removesuffix("/").removesuffix(".py"): place for place, room in enumerate(ROOMS) for name in room
}


def room_of(module: str) -> str:
    """`topdp.data.shards` -> `data`; names that the package itself defines belong to `__init__`."""
    first = module.split(".")[1] if "." in module else "__init__"
    return first if (SOURCE / first).is_dir() or (SOURCE / f"{first}.py").exists() else "__init__"


def imports(tree: ast.AST, package: str) -> set[str]:
    """Dotted names under topdp that the code imports, at the top or inside functions."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                found |= imports(ast.Module([other], []), package)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names} if base == "topdp" else {base}
        else:
            found |= imports(node, package)
    return {name for name in found if name.split(".")[0] == "topdp"}


def imports_of(file: Path) -> set[str]:
    package = ".".join(["topdp", *file.relative_to(SOURCE).parts[:-1]])
    return imports(ast.parse(file.read_text(encoding="utf-8")), package)


def test_every_room_is_listed_and_every_listed_room_is_there():
    there = {f"{path.name}/" for path in SOURCE.iterdir() if any(path.glob("*.py"))}
    there |= {path.name for path in SOURCE.glob("*.py")}
    assert {name for room in ROOMS for name in room} == there


@pytest.mark.parametrize("path", INNER)
def test_listed_files_are_there(path):
    assert (SOURCE / path).exists()


@pytest.mark.parametrize("room", sorted(PLACE.keys() - {"__init__"}))
def test_a_room_imports_only_rooms_above_it(room):
    files = sorted((SOURCE / room).rglob("*.py")) if (SOURCE / room).is_dir() else [SOURCE / f"{room}.py"]
    wrong = [
        f"{file.relative_to(SOURCE)} imports {module}"
        for file in files
        for module in sorted(imports_of(file))
        if PLACE.get(room_of(module), len(ROOMS)) > PLACE[room]
    ]
    assert not wrong, f"docs/design.md lists these below {room}: " + "; ".join(wrong)


def test_the_reader_of_imports_sees_what_it_should():
    code = """
from typing import TYPE_CHECKING
import topdp.plan
from topdp import __version__, run
from . import shards
from ..streams import stream
if TYPE_CHECKING:
    from topdp.cli import main
else:
    from topdp import engine
def late():
    from topdp.report.curves import curves
"""
    found = imports(ast.parse(code), "topdp.data")
    assert found == {
        "topdp.plan",
        "topdp.__version__",
        "topdp.run",
        "topdp.data",
        "topdp.streams",
        "topdp.engine",
        "topdp.report.curves",
    }
    assert {room_of(name) for name in found} == {
        "plan",
        "__init__",
        "run",
        "data",
        "streams",
        "engine",
        "report",
    }


def test_rooms_without_torch_do_not_import_it():
    code = f"""
import importlib, pkgutil, sys
for name in {WITHOUT_TORCH!r}:
    module = importlib.import_module(name)
    folder = [] if name == "topdp" else getattr(module, "__path__", [])
    for one in [name, *(part.name for part in pkgutil.walk_packages(folder, name + "."))]:
        importlib.import_module(one)
        if "torch" in sys.modules:
            sys.exit(one + " imports torch")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
