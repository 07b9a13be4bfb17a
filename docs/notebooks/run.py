"""Execute the notebooks in this folder and store their outputs; with --check, only compare them.

    python docs/notebooks/run.py [--check]

The outputs are stored so that readers see them without executing the notebooks. The check executes each
notebook and compares the outputs: text must be equal, numbers nearly equal because processors round
differently, and pictures must exist.
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
TOLERANCE = 0.06  # absolute and relative, because accuracies on few test records differ between processors
MAX_CELL_SECONDS = 120


def executed(notebook: Any, kernel: Any = None) -> Any:
    """Return a copy of `notebook` that was executed in an empty namespace.

    `kernel`: the manager of a running kernel; by default, a new kernel is started.
    """
    copy = nbformat.from_dict(notebook)
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    copy.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            copy,
            km=kernel,
            timeout=MAX_CELL_SECONDS,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        client.execute()
        if client.kc is not None:
            client.kc.stop_channels()
    del copy.cells[0]
    for number, cell in enumerate(copy.cells):
        cell.metadata.pop("execution", None)  # times
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            cell.execution_count = None
            kept = (
                without_other_formats(output) for output in cell.outputs if output.get("name") != "stderr"
            )
            cell.outputs = [output for output in kept if output.get("data") != {}]
    copy.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return copy


def without_other_formats(output: Any) -> Any:
    """Return an output with only its PNG picture and its plain text."""
    if "data" in output:
        output.data = {
            kind: value
            for kind, value in output.data.items()
            if kind in ("image/png", "text/plain") and value
        }
    return output


def said(cell: Any) -> str:
    """Return the printed text of a cell, with `[picture]` in place of each picture."""
    texts = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        texts.append("[picture]" if "image/png" in data else output.get("text") or data.get("text/plain", ""))
    return "".join("".join(text) for text in texts)


def difference(stored: str, new: str) -> str | None:
    """Describe the first difference; return None if the texts are equal, apart from nearly equal numbers.

    >>> difference("accuracy 93.0% of 3", "accuracy 94.5% of 3") is None, difference("μ 1.0", "μ 2.0")
    (True, '1.0 became 2.0')
    """
    if NUMBER.sub("#", stored) != NUMBER.sub("#", new):
        return f"{stored!r} became {new!r}"
    for before, after in zip(NUMBER.findall(stored), NUMBER.findall(new), strict=True):
        if abs(float(before) - float(after)) > TOLERANCE * max(1.0, abs(float(before))):
            return f"{before} became {after}"
    return None


def differences(stored: Any, new: Any) -> list[str]:
    """Return the differences between the cells of two versions of a notebook."""
    pairs = zip(stored.cells, new.cells, strict=True)
    return [text for before, after in pairs if (text := difference(said(before), said(after)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="compare with the stored outputs, and write nothing"
    )
    is_check, changes = parser.parse_args().check, []
    for file in NOTEBOOKS:
        stored = nbformat.read(file, as_version=4)
        new = executed(stored)
        if is_check:
            changes += [f"{file.name}: {text}" for text in differences(stored, new)]
        else:
            nbformat.write(new, file)
            print(file)
    if changes:
        sys.exit("\n".join([*changes, "Run python docs/notebooks/run.py to store the new outputs."]))


if __name__ == "__main__":
    main()
