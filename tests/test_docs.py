"""What README and docs promise: keys and defaults, links, commands and their options, the Python example."""

import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from topdp.cli import app
from topdp.settings import config

ROOT = Path(__file__).parents[1]
PAGES = sorted(page for place in ("*.md", "docs/**/*.md", "*/README.md") for page in ROOT.glob(place))
NOT_SET = "—"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def defaults(section: config.Section, prefix: str = "") -> dict[str, Any]:
    """Dotted key -> default, sections opened."""
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


def test_every_preset_is_documented():
    named = re.findall(
        r"^\| `([\w-]+)` \|", section("Presets", text_of(ROOT / "docs" / "configuration.md")), re.MULTILINE
    )
    assert sorted(named) == config.presets()


def anchors(text: str) -> set[str]:
    """The names that headings can be linked by, made as on GitHub."""
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


@every_page
def test_files_that_are_named_are_there(page):
    """`tests/...`, `scripts/...` and the like, from the top of the repository."""
    named = re.findall(r"`((?:src|tests|scripts|benchmarks|docs|deploy)/[\w./-]+)`", text_of(page))
    assert [name for name in named if not (ROOT / name).exists()] == []


def mentions(text: str) -> list[str]:
    """What stands behind `topdp` in code: inline, or on a line of a block that is not Python or TOML."""
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


def fault(mention: str) -> str | None:
    """Why the command line would not know this, or None."""
    command: Any = typer.main.get_command(app)
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


def test_commands_that_do_not_exist_are_found():
    page = "`topdp fly` or `topdp data list --json`\n```\npip install . && topdp run --fast  # --quick\n```\n"
    assert [fault(found) for found in mentions(page)] == [
        "it has no option --fast",
        "topdp has no command 'fly'",
        None,
    ]


def test_readme_example_runs(tmp_path):
    readme = ROOT / "README.md"
    blocks = re.findall(r"^```python\n(.*?)^```", text_of(readme), re.M | re.S) if readme.exists() else []
    if not blocks:
        pytest.skip("README.md has no Python example yet")
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{block}\n{done.stderr}"
