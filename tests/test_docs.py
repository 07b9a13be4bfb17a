"""Statements in README and docs: keys and defaults, names, links, files, commands. Not for code blocks."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from builders import registered_names
from topdp.cli.app import app
from topdp.data.catalogue import CATALOGUE, CatalogueEntry
from topdp.errors import DataError
from topdp.runs import config
from topdp.runs.methods import METHODS
from topdp.topology import FAMILIES

ROOT = Path(__file__).parents[1]
PAGES = sorted(page for place in ("*.md", "docs/**/*.md", "*/README.md") for page in ROOT.glob(place))
NOT_SET = "—"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def defaults(section: config.Section, prefix: str = "") -> dict[str, Any]:
    """The default of every dotted key."""
    found: dict[str, Any] = {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, config.Section):
            found |= defaults(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def documented() -> dict[str, Any]:
    rows = re.findall(
        r"^\| `([\w.]+)` \|.*\| (`[^`|]+`|—) \|[^|]*\|$",
        section("Keys", text_of(ROOT / "docs" / "configuration.md")),
        re.MULTILINE,
    )
    assert len(rows) == len({key for key, _ in rows}), "a key stands twice in docs/configuration.md"
    return {
        key: None if value == NOT_SET else tomllib.loads(f"value = {value.strip('`')}")["value"]
        for key, value in rows
    }


def section(title: str, text: str) -> str:
    return re.split(r"^## ", text.split(f"\n## {title}\n")[1], flags=re.MULTILINE)[0]


def test_every_key_is_documented_with_its_default():
    assert documented() == defaults(config.RunConfig())


def literals(section: type[config.Section], prefix: str = "") -> dict[str, set[str]]:
    """The allowed words of every dotted key that is a choice of words."""
    found: dict[str, set[str]] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, config.Section):
            found |= literals(field.annotation, f"{prefix}{name}.")
        else:
            names = get_args(field.annotation) or ()
            words = {word for one in names for word in (get_args(one) or (one,)) if isinstance(word, str)}
            words |= set(registered_names(field.metadata))
            if len(words) > 1:
                found[prefix + name] = words
    return found


def test_every_allowed_word_of_a_key_is_documented():
    keys = section("Keys", text_of(ROOT / "docs" / "configuration.md"))
    said = {
        key: set(re.findall("`([^`]+)`", kind))
        for key, kind in re.findall(r"^\| `([\w.]+)` \|([^|]*)\|", keys, re.M)
    }
    wanted = literals(config.RunConfig)
    assert len(wanted) >= 9
    assert {key: said[key] for key in wanted} == wanted


def test_every_data_set_is_documented():
    rows = re.findall(
        r"^\| `([\w-]+)` \| (.+) \|$",
        section("The data sets we know", text_of(ROOT / "docs" / "data.md")),
        re.MULTILINE,
    )
    assert dict(rows) == {
        name: " | ".join((
            f"{entry.shapes['train_inputs'][0]:,} + {entry.shapes['test_inputs'][0]:,}",
            " x ".join(map(str, entry.shapes["train_inputs"][1:])),
            f"{entry.bytes / 1e6:.{0 if entry.bytes > 1e7 else 2}f} MB",
            prepared(entry),
        ))
        for name, entry in CATALOGUE.items()
    }  # fmt: skip


def prepared(entry: CatalogueEntry) -> str:
    if entry.tokens:
        return f"token ids out of {entry.tokens:,}"
    if entry.types["train_inputs"] == "float32":
        return "a public range of each column"
    return " / ".join(" ".join(f"{value:.4f}" for value in each) for each in (entry.mean, entry.deviation))


def test_every_method_and_every_graph_is_documented():
    page, ours = text_of(ROOT / "docs" / "paper.md"), text_of(ROOT / "docs" / "methods.md")
    of_the_paper = re.findall(r"^\| `([\w-]+)` \|", section("The methods", page), re.MULTILINE)
    names = re.findall(r"^\| (`.*?`) \|", section("In short", ours), re.MULTILINE)
    compared = [name.strip("`") for several in names for name in several.split(", ")]
    assert list(dict.fromkeys([*of_the_paper, *compared])) == list(METHODS)
    # Methods that differ from `plain` only in their claim are not compared.
    assert set(of_the_paper) - set(compared) == {m.name for m in METHODS.values() if m.calibration}
    graphs = (
        section("What it leaves open, and our reading", page)
        .split("**Topologies.**")[1]
        .split("**Networks.**")[0]
    )
    assert {name for name in FAMILIES if f"`{name}`" in graphs} == set(FAMILIES)


def test_every_preset_is_documented():
    named = re.findall(
        r"^\| `([\w-]+)` \|", section("Presets", text_of(ROOT / "docs" / "configuration.md")), re.MULTILINE
    )
    assert sorted(named) == config.presets()


def anchors(text: str) -> set[str]:
    """The anchors of headings, as GitHub builds them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_page
def test_links_lead_somewhere(page):
    text = re.sub(r"^```.*?^```", "", text_of(page), flags=re.M | re.S)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        known = file.exists() and (not anchor or anchor in anchors(text_of(file)))
        if not known:
            broken.append(target)
    assert not broken


@cache
def files() -> list[str]:
    places = ("src", "tests", "scripts", "benchmarks", "docs", "deploy")
    return [
        f"/{file.relative_to(ROOT)}"
        for place in places
        for file in (ROOT / place).rglob("*")
        if file.is_file()
    ]


@every_page
def test_named_files_exist(page):
    """Paths like `tests/...` from the root of the repository; Python files also by the end of their path."""
    text = text_of(page)
    named = re.findall(r"`((?:src|tests|scripts|benchmarks|docs|deploy)/[\w./-]+)", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
    python = re.findall(r"`([\w./-]+\.(?:py|proto))(?=[`:])", text)
    assert [name for name in python if not any(file.endswith(f"/{name}") for file in files())] == []


@cache
def members() -> dict[str, set[str]]:
    """The names in every class of topdp and its bases: fields, methods, attributes."""
    bases: dict[str, set[str]] = {}
    found: dict[str, set[str]] = {}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(ast.unparse(base) for base in node.bases)
                found.setdefault(node.name, set()).update(_named_in(node))
    for name, above in bases.items():
        for base in above & found.keys():
            found[name] |= found[base]
    return found


def _named_in(body: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            yield node.attr
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


@every_page
def test_named_members_of_classes_exist(page):
    """For example `Plan.releases`."""
    said = re.findall(r"`(?:topdp\.)?(?:\w+\.)?([A-Z]\w+)\.(\w+)", text_of(page))
    assert [pair for pair in said if pair[0] in members() and pair[1] not in members()[pair[0]]] == []


def test_missing_names_would_be_reported():
    assert "releases" in members()["Plan"] and "epochs" not in members()["Plan"]
    assert "alpha" in members()["TopSynchronous"]  # inherited
    assert not any(file.endswith("/gaussian_mechanism.py") for file in files())


def mentions(text: str) -> list[str]:
    """The arguments of `topdp` in code: inline, or in a block that is not Python or TOML."""
    code = [
        line
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
        if language not in ("python", "toml")
        for line in block.splitlines()
    ]
    code += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    pieces = [piece.split(" #")[0] for line in code for piece in re.split(r"&&|;|\|", line)]
    return [
        found[1] for piece in pieces if (found := re.match(r"\s*(?:\$ )?(?:python -m )?topdp +(.+)", piece))
    ]


@cache
def application() -> Any:
    return typer.main.get_command(app)


def fault(mention: str) -> str | None:
    """Why the command line would refuse these arguments, or None."""
    command = application()
    words = mention.split()
    while words and hasattr(command, "commands"):
        if words[0].startswith("-"):
            break
        if words[0] not in command.commands:
            return f"topdp has no command {words[0]!r}"
        command = command.commands[words.pop(0)]
    known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    unknown = [option for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", mention) if option not in known]
    return f"it has no option {unknown[0]}" if unknown else None


@every_page
def test_commands_exist(page):
    wrong = [f"topdp {found}: {why}" for found in mentions(text_of(page)) if (why := fault(found))]
    assert not wrong


def test_missing_commands_would_be_reported():
    page = "`topdp fly` or `topdp data list --json`\n```\npip install . && topdp run --fast  # --quick\n```\n"
    assert [fault(found) for found in mentions(page)] == [
        "it has no option --fast",
        "topdp has no command 'fly'",
        None,
    ]


def commands(group: Any, above: str = "topdp") -> Iterator[str]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{above} {name}")
        else:
            yield f"{above} {name}"


def test_every_command_is_documented():
    text = "\n".join(text_of(page) for page in PAGES)
    missing = [name for name in commands(application()) if not re.search(rf"{name}\b", text)]
    assert missing == []


WITH_DATA_SETS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text_of(page), re.M | re.S))
    if "load(" in block
]
"""Python examples that need a data set; test_docs_blocks.py runs all others, and all commands."""


@pytest.mark.network
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("block", WITH_DATA_SETS)
def test_python_examples_with_data_sets_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        exec(compile(block, "example", "exec"), {"__name__": "__main__"})
    except DataError:
        pytest.skip("the data set cannot be reached")
