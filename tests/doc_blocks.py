"""The blocks of a page: what stands between fences, or is indented after an empty line, with its kind."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SHELL = ("", "shell")
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z")
PROMPT = re.compile(r"^(?:\w*\$ +)")
OUTPUT = "│"  # our tables begin so


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str
    reason: str | None  # why it is not run, from the comment above it

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """In the order of the page."""
    text = page.read_text(encoding="utf-8")
    fenced = r"^```(?P<language>\w*)[^\n]*\n(?P<fenced>.*?)^```"
    indented = r"(?<=\n\n)(?P<indented>(?: {4}[^\n]*\n)(?:(?: {4}[^\n]*)?\n)*)"
    for found in re.finditer(f"{fenced}|{indented}", text, re.M | re.S):
        body = found["fenced"] if found["indented"] is None else re.sub("(?m)^ {4}", "", found["indented"])
        before = text[: found.start()]
        if found["indented"] is not None and _continues_a_list(before):
            continue
        reason = NOT_RUN.search(before)
        line = before.count("\n") + 1
        yield Block(page, line, found["language"] or "", body, reason[1] if reason else None)


def _continues_a_list(before: str) -> bool:
    """An indented paragraph of a list is no code."""
    last = before.rstrip().rsplit("\n\n", 1)[-1]
    return re.match(r"\s*(?:[-*]|\d+\.) ", last) is not None


def commands(block: Block) -> Iterator[tuple[list[str], list[str]]]:
    """(words, lines of output below it) of each command of a shell block; what changes a file is left out."""
    lines = block.text.replace("\\\n", " ").splitlines()
    found: list[tuple[str, list[str]]] = []
    for line in lines:
        if line.startswith(OUTPUT):
            found[-1][1].append(line)
        elif line.strip():
            found.append((PROMPT.sub("", line.strip()), []))
    for line, output in found:
        for piece in re.split(r"\s+&&\s+", line):
            words = shlex.split(piece, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                del words[0]
            if ">" in words:
                del words[words.index(">") :]
            yield words, output
