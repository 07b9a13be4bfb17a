"""Tables and texts of the catalogue, as packages contain them: files to arrays. Reads only; `fetch`
downloads.

As in `_image_decoding`, a reader takes a folder and returns the four arrays of a data set, or None if the
folder does not hold its format. These sets have no published test part: every fifth record, in the order of
the file, becomes a test record.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from topdp.data._image_decoding import ARRAY_NAMES, Arrays, name_damaged_file
from topdp.data.readers.token_ids import token_ids

SPAM_TOKENS = 128
SPAM_VOCABULARY = 4096
_MARKUP = re.compile(r"<[^>]{0,2000}>")


def breast_cancer(folder: Path) -> Arrays | None:
    """Read scikit-learn's `breast_cancer.csv`: a line with counts, then 30 numbers and 0 (malignant) or 1."""
    file = folder / "breast_cancer.csv"
    if not file.is_file():
        return None
    table = _read_numbers(file, delimiter=",", skip=1, columns=31)
    return _split_every_fifth(table[:, :-1].astype(np.float32), table[:, -1].astype(np.uint8))


def diabetes(folder: Path) -> Arrays | None:
    """Read scikit-learn's `diabetes_data_raw.csv.gz`, ten numbers a line, and `diabetes_target.csv.gz`."""
    files = [folder / "diabetes_data_raw.csv.gz", folder / "diabetes_target.csv.gz"]
    if not all(file.is_file() for file in files):
        return None
    inputs, targets = (
        _read_numbers(file, None, 0, columns) for file, columns in zip(files, (10, 1), strict=True)
    )
    return _split_every_fifth(inputs.astype(np.float32), targets[:, 0].astype(np.float32))


def spam_assassin(folder: Path) -> Arrays | None:
    """Read one JSON file per message, with its `text` and `group`; 1 is spam.

    Only the subject and the body of a message are used: other headers reveal when and where mail was
    gathered. Markup is removed and only ASCII is read, so that ids are the same under every version of
    Unicode.
    """
    files = sorted(folder.glob("0????.*.json"))
    if not files:
        return None
    messages = []
    for file in files:
        with name_damaged_file(file):
            message = json.loads(file.read_text(encoding="utf-8"))
            messages.append((str(message["group"]), file.name, str(message["text"])))
    messages.sort()
    ids = token_ids([_message_text(text) for _, _, text in messages], SPAM_TOKENS, SPAM_VOCABULARY)
    spam = np.array([group.startswith("spam") for group, _, _ in messages])
    return _split_every_fifth(ids.astype(np.uint16), spam.astype(np.uint8))


def _message_text(message: str) -> str:
    headers, _, body = message.partition("\n\n")
    subject = re.search(r"^subject:(.*)$", headers, re.IGNORECASE | re.MULTILINE)
    text = f"{subject[1] if subject else ''} {_MARKUP.sub(' ', body)}"
    return text.encode("ascii", "replace").decode("ascii").replace("?", " ")


def _split_every_fifth(inputs: npt.NDArray[Any], targets: npt.NDArray[Any]) -> Arrays:
    test = np.arange(len(inputs)) % 5 == 4
    parts = (inputs[~test], targets[~test], inputs[test], targets[test])
    return dict(zip(ARRAY_NAMES, parts, strict=True))


def _read_numbers(file: Path, delimiter: str | None, skip: int, columns: int) -> npt.NDArray[np.float64]:
    with name_damaged_file(file):
        table = np.loadtxt(file, delimiter=delimiter, skiprows=skip, ndmin=2, encoding="ascii")
        if table.shape[1] != columns:
            raise ValueError(f"expected lines of {columns} numbers")
        return table
