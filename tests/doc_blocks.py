"""The code blocks of a page: between fences, or indented after an empty line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SHELL = ("", "shell")
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\s*\Z")
PROMPT = re.compile(r"^(?:\w*\$ +)")
OUTPUT = "│"  # the first character of our tables


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str
    reason: str | None  # from the comment above a block that is not run

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """All blocks in the order of the page."""
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
    """Whether an indented block belongs to a list, so that it is not code."""
    last = before.rstrip().rsplit("\n\n", 1)[-1]
    return re.match(r"\s*(?:[-*]|\d+\.) ", last) is not None


def commands(block: Block) -> Iterator[tuple[list[str], list[str]]]:
    """Words and output lines of each command in a shell block, without commands that change files."""
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
