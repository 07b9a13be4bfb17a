"""Every code block of README and docs is run in order, each page in an empty folder.

Each block of Python is executed by itself. TOML is read as a configuration or a schema. Commands of topdp
that train or account are executed with the settings of `SMALL` added, and other commands of topdp
unchanged. Commands in `ELSEWHERE` are only parsed by the real command line; `ELSEWHERE` names a test that
runs them. Benchmarks are run until they have parsed their arguments. For any other block, a comment above
it states why it is not run: `<!-- not run: reason -->`.
"""

import argparse
import re
import runpy
import sys
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pytest

from builders import blobs_file
from command_lines import command, parsed
from doc_blocks import SHELL, Block, blocks, commands
from test_docs import PAGES, ROOT
from topdp.data import Schema
from topdp.errors import ExitCode
from topdp.runs import config
from topdp.runs.config import ConfigError

TRAINS = ("run", "compare", "sweep", "audit")
"""Commands that run on a small file of images with few agents and rounds."""

SMALL = ("rounds=2", "data.records=60", "train.evaluate_every=1")

ELSEWHERE = {
    "reproduce": "tests/experiments/test_reproduce.py",
    "federation": "tests/agents/node/test_commands.py",
    "agent": "tests/agents/node/test_docs_walk.py",
    "relay": "tests/agents/wire/test_relay_server.py",
    "audit --recorded": "tests/audit/test_audit_command.py",
    "dash": "tests/views/live/test_dash_command.py",
    "data fetch": "tests/data/test_fetch.py",
    "stats": "tests/cli/test_statistics_command.py",
}
"""Commands that are only parsed here, with the test that runs them."""

OLD = "runs/old"
PREPARED = re.compile(r"RUN|FOLDER|(?:runs|sweeps)/(?!first)\w+")
"""Words that stand for a run of the reader; one prepared run replaces all of them."""

WITH_BLOCKS = [page for page in PAGES if any(True for _ in blocks(page))]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The files that pages assume: records, and a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(".")
    blobs_file(tmp_path / "records.npz", 120)
    (tmp_path / "mine.toml").write_text("seed = 1\n")
    numbers = np.random.default_rng(0)
    labels = {part: np.arange(count) % 3 for part, count in (("train", 400), ("test", 60))}
    inputs = {
        part: numbers.normal(0, 0.3, (len(own), 1, 8, 8)).astype(np.float32) for part, own in labels.items()
    }
    for part, own in labels.items():
        inputs[part][np.arange(len(own)), 0, own, :] += 1.5
    arrays = {f"{part}_inputs": array for part, array in inputs.items()}
    np.savez(tmp_path / "digits.npz", **arrays, **{f"{part}_labels": own for part, own in labels.items()})
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_runs(page, place, topdp, capsys):
    for block in blocks(page):
        if block.reason is not None:
            assert block.language in ("", "text"), f"{block.place}: only output and sketches are not run"
        elif block.language == "python":
            python(block)
        elif block.language == "toml":
            toml(block, place)
        elif block.language in SHELL:
            for words, output in commands(block):
                shell(words, output, topdp, block.place)
        else:
            pytest.fail(f"{block.place}: a block of {block.language!r} is neither run nor says why not")


def python(block: Block) -> None:
    if "load(" in block.text:
        return  # needs a data set: tests/test_docs.py runs it
    exec(compile(block.text, block.place, "exec"), {"__name__": "__main__"})


def toml(block: Block, place: Path) -> None:
    file = place / "block.toml"
    file.write_text(block.text, encoding="utf-8")
    try:
        config.read(file)
    except ConfigError:
        Schema.of(tomllib.loads(block.text))


def shell(words, output, topdp, where) -> None:
    if not words:
        return
    program = words[0].rpartition("/")[2]
    if program == "topdp":
        said = ours([OLD if PREPARED.fullmatch(word) else word for word in words[1:]], topdp, where)
        for line in output:
            cells = [cell.strip() for cell in line.strip("│").split("│")]
            assert any(all(cell in row for cell in cells) for row in said.splitlines()), (where, line, said)
    elif words[0] == "nice":
        shell(words[words.index("python") :], output, topdp, where)
    elif program == "python" and words[1].endswith(".py"):
        arguments_are_read(ROOT / words[1], words[2:])
    else:
        installs(words, where)


def ours(words, topdp, where) -> str:
    """Stdout of a topdp command; empty if it was only parsed."""
    elsewhere = next((name for name in ELSEWHERE if all(part in words for part in name.split())), None)
    if elsewhere is not None:
        assert (ROOT / ELSEWHERE[elsewhere]).exists(), ELSEWHERE[elsewhere]
        command(words) if "..." in words else parsed(words)
        return ""
    if OLD in words and words[words.index(OLD) - 1] != "--out" and not Path(OLD).exists():
        assert topdp("run", *small(["run"]), "--out", OLD).code == 0
    done = topdp(*words, *small(words))
    if done.code == ExitCode.INPUT and re.search("could not find .* Install them with pip install", done.err):
        return ""  # an optional part that is not installed
    assert done.code == 0, (where, words, done.err)
    return done.out


def small(words) -> list[str]:
    """Options that make a command take about a second."""
    if words[0] not in (*TRAINS, "account", "recommend") or OLD in words[1:2]:
        return []
    given = " ".join(words)
    changes = list(SMALL) if words[0] in TRAINS else ["rounds=5"] if "sigma=" not in given else []
    if words[0] in TRAINS and "data.name=" not in given:
        changes.append("data.name=digits.npz")
    if "topology.kind=file" not in given and "topology.agents=" not in given:
        degree = re.search(r"topology.degree=(\d+)", given)
        changes.append(f"topology.agents={2 + int(degree[1]) if degree else 6}")
    seeds = ["--seeds", "1"] if "--seeds" in words else []
    return seeds + [word for change in changes for word in ("--set", change)]


class ArgumentsRead(BaseException):
    """Ends a program once it has parsed its arguments."""


def arguments_are_read(file, words) -> None:
    """Run the program up to the end of argument parsing."""
    whole = argparse.ArgumentParser.parse_args

    def stop(parser, *given, **options):
        whole(parser, *given, **options)
        raise ArgumentsRead

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", stop)
        patch.setattr(sys, "argv", [str(file), *words])
        patch.syspath_prepend(str(file.parent))
        with pytest.raises(ArgumentsRead), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(str(file), run_name="__main__")


def installs(words, where) -> None:
    """Check the files and names in commands that set up an environment, without running them."""
    if words[0].startswith("scripts/"):
        assert (ROOT / words[0]).exists(), where
    elif words[0].endswith("pip"):
        assert words[1:4] == ["install", "-c", "constraints.txt"] and (ROOT / "constraints.txt").exists(), (
            where
        )
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert re.fullmatch(rf"\.(\[({'|'.join(extras)})\])?", words[4]), where
    else:
        known = (["python3", "-m", "venv", ".venv"], [".", ".venv/bin/activate"], ["mkdocs", "serve"])
        assert words in [*known, ["mkdocs", "build", "--strict"]], (
            f"{where}: nothing says how to check {words}"
        )


def test_wrong_blocks_would_be_reported(place, topdp, tmp_path):
    def page(text):
        (tmp_path / "page.md").write_text(text)
        return list(blocks(tmp_path / "page.md"))

    calibrate = ["topdp", "calibrate", "--epsilon", "1", "--releases", "9", "--records", "9"]
    for words, output in ((["topdp", "run", "--fast"], []), (calibrate, ["│ tight │ 77 │"])):
        with pytest.raises(AssertionError):
            shell(words, output, topdp, "x")
    with pytest.raises(SystemExit):
        arguments_are_read(ROOT / "benchmarks" / "ledger.py", ["--fast"])
    with pytest.raises(AssertionError):
        installs(["pip", "install", "-c", "constraints.txt", ".[nothing]"], "x")
    found = page(
        "a\n\n    indented\n\n- item\n\n    more of it\n\n<!-- not run: a sketch -->\n```\nfenced\n```\n"
    )
    assert [(block.text.strip(), block.reason) for block in found] == [
        ("indented", None),
        ("fenced", "a sketch"),
    ]
