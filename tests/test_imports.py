"""Imports point one way: packages in the order of docs/design.md, modules without cycles."""

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
    "topdp.base",
    "topdp.privacy",
    "topdp.plan",
    "topdp.topology",
    "topdp.protocols",
    "topdp.runs.config",
    "topdp.runs.resolve",
    "topdp.runs.named_records",
    "topdp.runs.named_model",
    "topdp.runs.run_folder",
    "topdp.runs.planning",
    "topdp.runs.planner",
    "topdp.runs.pictures",
    "topdp.views.terminal",
    "topdp.views.pictures",
    "topdp.views.pages",
    "topdp.cli.app",
]


def package_order() -> list[str]:
    """The packages in the order of the list in docs/design.md."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^## The packages\n.*?^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [line.split()[0].removesuffix("/").removesuffix(".py") for line in block.splitlines()]


def module_of(file: Path) -> str:
    parts = ["topdp", *file.relative_to(SOURCE).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_of(file): file for file in SOURCE.rglob("*.py")}


def imports(tree: ast.AST) -> set[str]:
    """The modules of topdp that the code imports, at the top or inside functions, not for types only."""
    imported: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                imported |= imports(ast.Module([other], []))
        elif isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in FILES else str(node.module) for name in names}
        else:
            imported |= imports(node)
    return {name for name in imported if name.split(".")[0] == "topdp" and name != "topdp"}


IMPORTS = {
    module: imports(ast.parse(file.read_text(encoding="utf-8")))
    for module, file in FILES.items()
    if module != "topdp"  # it imports exported names lazily
}


def test_every_package_is_listed_in_the_design():
    packages = {module.split(".")[1] for module in FILES if "." in module} - {"__main__"}
    assert sorted(package_order()) == sorted(packages)


def test_packages_import_only_packages_above_them():
    place = {package: number for number, package in enumerate([*package_order(), "__main__"])}
    wrong = [
        f"{module} imports {name}"
        for module, names in IMPORTS.items()
        for name in names
        if place[name.split(".")[1]] > place[module.split(".")[1]]
    ]
    assert not wrong, "\n".join(wrong)


def test_private_modules_are_imported_inside_their_folder_only():
    wrong = [
        f"{module} imports {name}"
        for module, names in IMPORTS.items()
        for name in names
        if name.rpartition(".")[2].startswith("_")
        and not f"{module}.".startswith(name.rpartition(".")[0] + ".")
    ]
    assert not wrong, "\n".join(wrong)


def test_packages_with_a_public_front_export_what_others_may_import():
    """In these packages a module without an underscore is either public or imported by another package."""
    fronts = ("topdp.data", "topdp.privacy", "topdp.protocols", "topdp.topology")
    importers: dict[str, set[str]] = {}
    for module, names in IMPORTS.items():
        for name in names:
            importers.setdefault(name, set()).add(module)
    unmarked = [
        name
        for name, file in FILES.items()
        if name.startswith(fronts)
        and file.name != "__init__.py"
        and not file.name.startswith("_")
        and all(f"{module}.".startswith(name.rpartition(".")[0] + ".") for module in importers[name])
    ]
    assert not unmarked, "begin the name with an underscore: " + ", ".join(unmarked)


def test_modules_import_each_other_without_cycles():
    finished: set[str] = set()
    path: list[str] = []

    def visit(module: str) -> None:
        if module in finished:
            return
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        path.append(module)
        for name in sorted(IMPORTS.get(module, ())):
            visit(name)
        finished.add(path.pop())

    for module in sorted(IMPORTS):
        visit(module)


def test_every_package_has_tests():
    tests = {folder.name for folder in (ROOT / "tests").iterdir() if list(folder.rglob("test_*.py"))}
    folders = {package for package in package_order() if (SOURCE / package).is_dir()}
    assert folders - tests == set()


def test_no_two_test_files_share_a_name():
    """Test folders are not packages, so pytest refuses a second file with the same name."""
    names = [file.name for file in (ROOT / "tests").rglob("*.py") if file.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def test_imports_reads_all_forms():
    code = """
from typing import TYPE_CHECKING
import topdp.plan.plan
from topdp import __version__, runs
from topdp.plan.random_streams import stream
if TYPE_CHECKING:
    from topdp.cli import app
else:
    from topdp.simulator import engine
def late():
    from topdp.runs.pictures.learning_curves import curves
"""
    assert imports(ast.parse(code)) == {
        "topdp.plan.plan",
        "topdp.runs",
        "topdp.plan.random_streams",
        "topdp.simulator.engine",
        "topdp.runs.pictures.learning_curves",
    }


@pytest.mark.slow
def test_packages_without_torch_do_not_import_it():
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


POSIX_NAMES = {
    "os": ["O_NOFOLLOW", "fork", "geteuid", "getuid", "sched_getaffinity", "sysconf", "uname"],
    "signal": ["SIGHUP", "SIGKILL", "SIGUSR1"],
    "socket": ["AF_UNIX"],
    "time": ["CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "clock_gettime"],
}
"""Names that Windows or macOS lack."""

POSIX_ONLY = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}


@pytest.mark.slow
def test_modules_import_where_there_is_no_posix():
    """Only what topdp uses is blocked: other packages are imported first, with the names that they need."""
    code = f"""
import builtins, importlib, sys

def import_portable(name, globals=None, *arguments, **named):
    importer = str((globals or {{}}).get("__name__"))
    if name in {POSIX_ONLY!r} and importer.startswith("topdp"):
        raise ImportError(f"{{importer}} imports {{name}}")
    return real_import(name, globals, *arguments, **named)

def import_all():
    for name in {sorted(set(FILES) - {"topdp.__main__"})!r}:
        importlib.import_module(name)

import_all()
for name in [name for name in sys.modules if name.partition(".")[0] == "topdp"]:
    del sys.modules[name]
for module, names in {POSIX_NAMES!r}.items():
    for name in names:
        vars(importlib.import_module(module)).pop(name, None)
real_import, builtins.__import__ = builtins.__import__, import_portable
import_all()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
