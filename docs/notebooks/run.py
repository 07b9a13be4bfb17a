"""Executes the notebooks beside this file and keeps what they print and draw; with --check it only compares.

    python docs/notebooks/run.py [--check]

Outputs are kept, so that readers see them where nothing is executed. The check executes a notebook and
compares: words must be the same, numbers nearly so (other processors round otherwise), and pictures there.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
NEAR = 0.06  # absolute and relative: accuracies of few test records differ between processors


def executed(notebook: Any, kernel: Any = None) -> Any:
    """A copy with the outputs of now, from an empty namespace; `kernel`: a manager that has one running."""
    fresh = nbformat.from_dict(notebook)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    fresh.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    with tempfile.TemporaryDirectory() as place:
        where = {"metadata": {"path": place}}
        client = NotebookClient(fresh, km=kernel, timeout=120, kernel_name="python3", resources=where)
        client.execute()
        if client.kc is not None:
            client.kc.stop_channels()
    del fresh.cells[0]
    for number, cell in enumerate(fresh.cells):
        cell.metadata.pop("execution", None)  # when it was
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [tidied(output) for output in cell.outputs if output.get("name") != "stderr"]
    fresh.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return fresh


def tidied(output: Any) -> Any:
    if "data" in output:
        output.data = {
            kind: value for kind, value in output.data.items() if kind in ("image/png", "text/plain")
        }
    return output


def said(cell: Any) -> str:
    """What a cell printed, and where it drew."""
    words = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        words.append("[picture]" if "image/png" in data else output.get("text") or data.get("text/plain", ""))
    return "".join("".join(word) for word in words)


def difference(kept: str, now: str) -> str | None:
    """What differs, in words; None where all is the same but for numbers that are near to each other.

    >>> difference("accuracy 93.0% of 3", "accuracy 94.5% of 3") is None, difference("one 1.0", "one 2.0")
    (True, '1.0 became 2.0')
    """
    if NUMBER.sub("#", kept) != NUMBER.sub("#", now):
        return f"{kept!r} became {now!r}"
    for one, other in zip(NUMBER.findall(kept), NUMBER.findall(now), strict=True):
        if abs(float(one) - float(other)) > NEAR * max(1.0, abs(float(one))):
            return f"{one} became {other}"
    return None


def differences(kept: Any, now: Any) -> list[str]:
    pairs = zip(kept.cells, now.cells, strict=True)
    return [why for one, other in pairs if (why := difference(said(one), said(other)))]


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument(
        "--check", action="store_true", help="compare with what is kept, and write nothing"
    )
    check, wrong = arguments.parse_args().check, []
    for file in NOTEBOOKS:
        kept = nbformat.read(file, as_version=4)
        now = executed(kept)
        if check:
            wrong += [f"{file.name}: {why}" for why in differences(kept, now)]
        else:
            nbformat.write(now, file)
            print(file)
    if wrong:
        sys.exit("\n".join([*wrong, "Run python docs/notebooks/run.py to keep what they say now."]))


if __name__ == "__main__":
    main()
