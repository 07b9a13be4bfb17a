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
    "topdp.errors",
    "topdp.privacy",
    "topdp.report",
    "topdp.plan",
    "topdp.topology",
    "topdp.protocols",
    "topdp.settings",
    "topdp.runs.folder",
    "topdp.runs.planning",
    "topdp.planner",
    "topdp.pages.facts",
    "topdp.pages.report",
    "topdp.cli",
]

PAGE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def listed() -> list[str]:
    """Every module in the order of the list in docs/design.md; a folder's front door after its files."""
    (block,) = re.findall(r"^```\nsrc/topdp/\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    order: list[str] = []
    inside: list[str] = ["topdp"]

    def leave(depth: int) -> None:
        while len(inside) > depth:
            order.append(".".join(inside))
            inside.pop()

    for line in block.splitlines():
        found = re.match(r"( +)([\w.]+/?)", line)
        assert found, f"Expected a file or folder in the list of docs/design.md, got {line!r}."
        leave(len(found[1]) // 2)
        name = found[2]
        if name.endswith("/"):
            inside.append(name[:-1])
        else:
            order.append(".".join([*inside, name.removesuffix(".py")]))
    leave(0)
    return order


ORDER = listed()
PLACE = {module: place for place, module in enumerate(ORDER)}


def module_of(file: Path) -> str:
    parts = ["topdp", *file.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split(".")[1:])
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def imports(tree: ast.AST, package: str) -> set[str]:
    """The modules of topdp that the code imports, at the top or inside functions."""
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
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name if is_module(name) else base for name in names}
        else:
            found |= imports(node, package)
    return {name for name in found if name.split(".")[0] == "topdp"}


def imports_of(file: Path) -> set[str]:
    package = ".".join(["topdp", *file.relative_to(SOURCE).parts[:-1]])
    return imports(ast.parse(file.read_text(encoding="utf-8")), package)


FILES = {module_of(file): file for file in SOURCE.rglob("*.py")}


def test_every_file_is_listed_and_every_listed_file_is_there():
    assert len(ORDER) == len(PLACE), "a file stands twice in docs/design.md"
    assert set(ORDER) == set(FILES)


def test_the_first_page_shows_the_rooms_in_the_same_order():
    (block,) = re.findall(
        r"^## The rooms\n\n(?:<!--[^\n]*-->\n)?```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
    shown = [line.split()[0].removesuffix("/").removesuffix(".py") for line in block.splitlines()]
    rooms = dict.fromkeys(module.split(".")[1] for module in ORDER if "." in module)
    assert shown == [room for room in rooms if room != "__main__"]


def test_every_room_has_its_tests():
    rooms = {file.relative_to(SOURCE).parts[0] for file in SOURCE.rglob("*.py")} - {
        "__init__.py",
        "__main__.py",
    }
    tests = ROOT / "tests"
    found = {room.name for room in tests.iterdir() if list(room.rglob("test_*.py"))}
    found |= {file.name.removeprefix("test_") for file in tests.glob("test_*.py")}
    assert rooms - found == set()


def test_no_two_files_of_tests_share_a_name():
    """They are no packages: of two with one name pytest imports the first, and refuses the second."""
    names = [file.name for file in (ROOT / "tests").rglob("*.py") if file.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


# The package's own front door hands out what is asked for by name, and may look anywhere.
@pytest.mark.parametrize("module", sorted(FILES.keys() - {"topdp"}))
def test_a_file_imports_only_files_above_it(module):
    wrong = [
        name
        for name in imports_of(FILES[module])
        if name != "topdp" and PLACE.get(name, len(ORDER)) >= PLACE[module]
    ]
    assert not wrong, f"docs/design.md lists these below {module}: {', '.join(wrong)}"


def test_the_reader_of_imports_sees_what_it_should():
    code = """
from typing import TYPE_CHECKING
import topdp.plan.plan
from topdp import __version__, runs
from . import shards
from ..plan.streams import stream
if TYPE_CHECKING:
    from topdp.cli import main
else:
    from topdp.simulator import engine
def late():
    from topdp.report.curves import curves
"""
    assert imports(ast.parse(code), "topdp.data") == {
        "topdp",
        "topdp.plan.plan",
        "topdp.runs",
        "topdp.data.shards",
        "topdp.plan.streams",
        "topdp.simulator.engine",
        "topdp.report.curves",
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
