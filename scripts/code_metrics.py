#!/usr/bin/env python3
"""Measure size and naming of the source: packages, repeated names, constructors, modules that an agent loads.

Usage: python scripts/code_metrics.py [--json] [--without-agent]

`tests/test_code_metrics.py` has limits for these numbers. `agent_footprint.py` counts the modules of an agent
in a federation of two real agents; everything else needs only the standard library.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "topdp"
GENERATED = {"wire_pb2.py"}
MAX_POSITIONAL_ARGUMENTS = 4

# Names that do not state what a variable holds.
VAGUE_NAMES = [
    "found",
    "said",
    "told",
    "known",
    "seen",
    "asked",
    "made",
    "most",
    "least",
    "given",
    "kept",
    "one",
    "came",
    "gone",
    "held",
    "whoever",
    "life",
]

# Packages and modules that an agent in production must not load.
EXCLUDED_FROM_AGENTS = (
    "topdp.audit",
    "topdp.experiments",
    "topdp.views",
    "topdp.agents.development",
    "topdp.simulator.hostile",
    "topdp.simulator.ranks",
    "topdp.simulator.cuda",
    "topdp.runs.sweep",
    "topdp.runs.sweep_grid",
    "topdp.runs.sweep_summary",
)

# The exceptions: an agent needs the package, but nothing else of it, and the subpackage, to print a line.
ALLOWED_PACKAGE, ALLOWED_SUBPACKAGE = "topdp.views", "topdp.views.terminal"


def sources() -> dict[str, Path]:
    """Return the file of every module by its dotted name."""
    modules = {}
    for file in sorted(SOURCE.rglob("*.py")):
        parts = ["topdp", *file.relative_to(SOURCE).with_suffix("").parts]
        modules[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return modules


def code_lines(file: Path) -> int:
    """Return the number of lines with code: no blank lines, comments or docstrings."""
    text = file.read_text(encoding="utf-8")
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str):
                docstrings |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    empty = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in empty:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def repeated(names: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the names that occur in more than one place, with the places."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, place in names:
        places[name].append(place)
    return {name: modules for name, modules in sorted(places.items()) if len(modules) > 1}


def module_names(modules: dict[str, Path]) -> Iterator[tuple[str, str]]:
    return ((file.stem, name) for name, file in modules.items() if file.stem != "__init__")


def class_names(trees: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    for module, tree in trees.items():
        yield from ((node.name, module) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def constant_names(trees: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Yield the constants of modules, each once per module.

    Type parameters are no constants: their names are one letter, or have lower-case letters.
    """
    for module, tree in trees.items():
        assigned = {
            target.id
            for node in tree.body
            for target in getattr(node, "targets", [getattr(node, "target", None)])
            if isinstance(target, ast.Name) and target.id.isupper() and len(target.id) > 1
        }
        yield from ((name, module) for name in assigned)


def constructors(trees: dict[str, ast.Module]) -> list[tuple[int, int, str]]:
    """Return the numbers of positional and of all arguments, and the class, of every constructor."""
    counts = []
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and (arguments := _arguments(node)) is not None:
                counts.append((*arguments, f"{module}.{node.name}"))
    return sorted(counts, reverse=True)


def _arguments(node: ast.ClassDef) -> tuple[int, int] | None:
    """Return the numbers of positional and of all arguments of a constructor; None if it is inherited."""
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and part.name == "__init__":
            positional = len(part.args.posonlyargs) + len(part.args.args) - 1
            return positional, positional + len(part.args.kwonlyargs)
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    tuples = any(ast.unparse(base).endswith("NamedTuple") for base in node.bases)
    if not tuples and not any("dataclass" in decorator for decorator in decorators):
        return None
    by_keyword = any("kw_only=True" in decorator for decorator in decorators)
    positional = total = 0
    for part in node.body:
        if not isinstance(part, ast.AnnAssign):
            continue
        annotation, value = ast.unparse(part.annotation), ast.unparse(part.value) if part.value else ""
        if annotation.endswith("KW_ONLY"):
            by_keyword = True
        elif "ClassVar" not in annotation and "init=False" not in value:
            total += 1
            positional += not by_keyword and "kw_only=True" not in value
    return positional, total


def vague_names(trees: dict[str, ast.Module]) -> Counter[str]:
    """Count the assignments to variables with vague names."""
    return Counter(
        node.id
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES
    )


def loaded_by_agents() -> list[str]:
    """Return the modules that an agent loads from its start to its last round."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from agent_footprint import modules_loaded

    return modules_loaded()


def excluded(loaded: list[str]) -> list[str]:
    """Return the loaded modules that an agent in production must not load."""

    def inside(name: str, packages: tuple[str, ...]) -> bool:
        return any(name == package or name.startswith(f"{package}.") for package in packages)

    return [
        name
        for name in loaded
        if (inside(name, EXCLUDED_FROM_AGENTS) or "cuda" in name)
        and name != ALLOWED_PACKAGE
        and not inside(name, (ALLOWED_SUBPACKAGE,))
    ]


def measure(agents: bool = True) -> dict[str, Any]:
    """Return all numbers, with the names that they count."""
    modules = sources()
    trees = {
        name: ast.parse(file.read_text(encoding="utf-8"))
        for name, file in modules.items()
        if file.name not in GENERATED
    }
    lines = {name: code_lines(file) for name, file in modules.items()}
    packages: Counter[str] = Counter()
    for name, count in lines.items():
        packages[name.split(".")[1] if "." in name else "topdp"] += count
    all_constructors = constructors(trees)
    loaded = loaded_by_agents() if agents else []
    return {
        "packages": sorted(name for name in packages if (SOURCE / name).is_dir()),
        "code lines": dict(sorted(packages.items())) | {"all": sum(packages.values())},
        "modules": len(modules),
        "repeated module names": repeated(module_names(modules)),
        "repeated class names": repeated(class_names(trees)),
        "repeated constant names": repeated(constant_names(trees)),
        "vague local names": dict(vague_names(trees).most_common()),
        "long positional constructors": [
            [name, positional]
            for positional, _, name in all_constructors
            if positional > MAX_POSITIONAL_ARGUMENTS
        ],
        "longest constructors": [
            [name, count]
            for count, name in sorted(((c, n) for _, c, n in all_constructors), reverse=True)[:5]
        ],
        "agent modules": loaded,
        "agent lines": sum(lines.get(name, 0) for name in loaded),
        "agent modules excluded": excluded(loaded),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--without-agent", action="store_true", help="skip the modules that an agent loads")
    options = parser.parse_args()
    numbers = measure(not options.without_agent)
    if options.json:
        print(json.dumps(numbers))
        return
    for title, value in numbers.items():
        if isinstance(value, dict):
            print(f"{title}: {len(value)}" if "names" in title else f"{title}:")
            for name, detail in value.items():
                print(f"    {name}: {', '.join(detail) if isinstance(detail, list) else detail}")
        elif isinstance(value, list):
            print(f"{title}: {len(value)}")
            for entry in value if title != "agent modules" else ():
                print("    " + (": ".join(map(str, entry)) if isinstance(entry, list) else entry))
        else:
            print(f"{title}: {value}")


if __name__ == "__main__":
    main()
