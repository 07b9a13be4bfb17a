"""Estimators of scikit-learn that train with `topdp.train`: `PrivateClassifier` and `PrivateRegressor`.

Users import them from `topdp.sklearn`. An estimator scales inputs by public ranges, gives each site its
records, trains, and predicts with the mean of the sites' models.

**Guarantees.** As `topdp.train`, for the records given to one `fit`. Ranges and classes must be public
knowledge. Ranges are never taken from records. If classes are taken from y, a warning states that no account
covers it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import nn

from topdp.base.array_types import AnyArray, Floats
from topdp.base.progress import silent
from topdp.data import Shards
from topdp.data.readers.record_paths import sorted_sites
from topdp.errors import InputError
from topdp.integrations import MissingPackageError
from topdp.integrations._fit_costs import FitHistory
from topdp.runs.other_words import explain_unknown_arguments
from topdp.runs.result import Result
from topdp.runs.user_training import train
from topdp.topology import Topology, complete

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise MissingPackageError(
        "Expected scikit-learn for topdp.sklearn, could not find it. Install it with "
        "pip install -c constraints.txt '.[sklearn]'."
    ) from None

Range = tuple[float, float]
Ranges = Range | Sequence[Range] | Mapping[str, Range]
ModelFactory = Callable[[int, int], nn.Module]
HIDDEN_UNITS = 64


class _SiteEstimator(BaseEstimator):  # type: ignore[misc]
    """The parts that both estimators share. Subclasses state their parameters in `__init__`."""

    epsilon: float
    delta: float
    ranges: Ranges | None
    model: str | nn.Module | ModelFactory
    topology: Any
    method: str
    colluders: int
    rounds: int
    learning_rate: float
    clip: float
    random_state: int | None
    verbose: bool
    train_options: Mapping[str, Any] | None
    result_: Result

    def __sklearn_clone__(self) -> Self:
        fresh = type(self)(**{name: _cloned(value) for name, value in self.get_params(deep=False).items()})
        fresh.__dict__["_history"] = self._fit_history
        return fresh

    @property
    def _fit_history(self) -> FitHistory:
        return cast(FitHistory, self.__dict__.setdefault("_history", FitHistory()))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True  # the noise is new in every fit
        return tags

    def _train(self, X: Any, y: Any, sites: Any, outputs: int, loss: str) -> None:
        """Train on validated inputs [records, columns] and targets, and set `result_` and `sites_`."""
        if sites is None:
            warnings.warn(
                f"{type(self).__name__}.fit has no sites, so it trains by the method central: one party "
                "holds all records and adds all noise. Give sites=..., a column or an array that states who "
                "holds each record, to train without such a party.",
                UserWarning,
                stacklevel=3,
            )
            names, parts = ["all"], [np.arange(len(y))]
        else:
            labels = np.array([str(site) for site in sites])
            names = sorted_sites(set(labels.tolist()))
            parts = [np.flatnonzero(labels == name) for name in names]
        inputs = self._scaled(X)
        shards = Shards.from_arrays(
            [(inputs[part], y[part]) for part in parts], classes=outputs if loss == "cross-entropy" else None
        )
        if sites is not None:
            shards = replace(shards, labels=tuple(names))
        graph, method = self._graph_and_method(len(parts))
        arguments: dict[str, Any] = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "method": method,
            "colluders": self.colluders,
            "rounds": self.rounds,
            "learning_rate": self.learning_rate,
            "clip": self.clip,
            "seed": 0 if self.random_state is None else self.random_state,
            "progress": "auto" if self.verbose else silent,
        }
        self.result_ = train(
            self._network(inputs.shape[1], outputs),
            shards,
            graph,
            loss=loss,
            **{**arguments, **(self.train_options or {})},
        )
        self.sites_ = names
        self._fit_history.add(self.result_.privacy)
        if len(self._fit_history.fits) > 1:
            warnings.warn(self._fit_history.warning(), UserWarning, stacklevel=3)

    def _graph_and_method(self, sites: int) -> tuple[Topology, str]:
        """Return the graph of the sites and the method: pair noise needs a third site that lacks a secret."""
        if sites == 1:
            if self.method not in ("auto", "central"):
                raise InputError(
                    "method: expected 'central' or 'auto' for the records of one party, got "
                    f"{self.method!r}. Give sites=..., a column or an array that states who holds each "
                    "record."
                )
            return complete(2), "central"  # this method pools all records at one agent
        method = self.method
        if method == "auto":
            method = "correlated" if sites > 2 else "dsgd"
        return complete(sites) if self.topology is None else self.topology, method

    def _network(self, inputs: int, outputs: int) -> nn.Module:
        """Return the model to train: one of two by name, the user's own, or what the user's factory makes."""
        if isinstance(self.model, nn.Module):
            return self.model
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.random_state or 0)
            if callable(self.model):
                return self.model(inputs, outputs)
            if self.model == "mlp":
                return nn.Sequential(
                    nn.Linear(inputs, HIDDEN_UNITS), nn.ReLU(), nn.Linear(HIDDEN_UNITS, outputs)
                )
        if self.model != "linear":
            raise InputError(
                "model: expected 'linear', 'mlp', a torch module, or a function of (inputs, outputs) that "
                f"makes one, got {self.model!r}."
            )
        layer = nn.Linear(inputs, outputs)
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
        return layer

    def _scaled(self, X: Floats) -> AnyArray:
        """Return inputs of norm at most 1: columns, brought from their ranges to [-1, 1], over √columns."""
        low, high = self._limits(X.shape[1])
        scaled = 2 * (np.clip(X, low, high) - low) / (high - low) - 1
        return np.asarray(scaled / np.sqrt(X.shape[1]), np.float32)

    def _limits(self, columns: int) -> tuple[Floats, Floats]:
        if self.ranges is None:
            raise InputError(
                "ranges: expected the public range of every column of X, got none. Ranges are not taken from "
                "the records, because that would disclose something that no account covers. Give one (low, "
                "high) for all columns, a list with one for each, or a dictionary by column; values outside "
                "are clipped."
            )
        ranges: Any = self.ranges
        if isinstance(ranges, Mapping):
            names = getattr(self, "feature_names_in_", None)
            if names is None:
                raise InputError("ranges: expected a list of ranges for an array without names, got names.")
            missing = [name for name in names if name not in ranges]
            if missing:
                raise InputError(f"ranges: expected a range of the column {missing[0]!r}, got none.")
            ranges = [ranges[name] for name in names]
        limits = _as_limits("ranges", ranges)
        if len(limits) not in (1, columns):
            raise InputError(
                f"ranges: expected one range, or one for each of {columns} columns, got {len(limits)}."
            )
        limits = np.broadcast_to(limits, (columns, 2))
        return limits[:, 0], limits[:, 1]

    def _without_sites(self, X: Any, sites: Any) -> tuple[Any, Any]:
        """Return X without the column that names the sites, and the site of each record; None: one party."""
        self.__dict__.pop("site_column_", None)
        if sites is None:
            return X, None
        if isinstance(sites, str):
            if sites not in getattr(X, "columns", ()):
                raise InputError(
                    f"sites: expected the name of a column of X, or an array with one value for each record, "
                    f"got {sites!r}."
                )
            self.site_column_ = sites
            return X.drop(columns=sites), np.asarray(X[sites])
        values = np.asarray(sites)
        records = X.shape[0] if hasattr(X, "shape") else len(X)
        if values.shape != (records,):
            raise InputError(
                f"sites: expected one value for each of {records} records, got an array of shape "
                f"{values.shape}."
            )
        return X, values

    def _inputs(self, X: Any) -> AnyArray:
        """Return new records as inputs of the model."""
        check_is_fitted(self)
        column = getattr(self, "site_column_", None)
        if column is not None and column in getattr(X, "columns", ()):
            X = X.drop(columns=column)
        return self._scaled(validate_data(self, X, reset=False, dtype=np.float64))


class PrivateClassifier(ClassifierMixin, _SiteEstimator):  # type: ignore[misc]
    """A private classifier for scikit-learn, trained by sites that keep their records.

    `epsilon`, `delta`: the budget of one fit. `ranges`: the public range of each column: one (low, high) for
    all, a list, or a dictionary by name. Values outside are clipped. `classes`: all classes, in any order;
    None: those in y, with a warning, because the classes should be public.

    `model`: "linear", "mlp", a torch module, or a function of (inputs, outputs) that makes one. `topology`:
    None: every two sites are neighbours. `method`: "auto" is `correlated` for three sites or more, `dsgd` for
    two, and `central` without sites. `colluders`: how many sites may collude. `random_state`: the public seed
    of the start; it does not determine the noise, which is new in every fit. `train_options`: further
    arguments of `topdp.train`.

    After `fit`, `result_` is the `topdp.Result`, with `result_.privacy`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).uniform(0, 9, (900, 2))
    >>> model = PrivateClassifier(epsilon=1.0, ranges=(0, 9), classes=["low", "high"])
    >>> model = model.fit(X, np.where(X.sum(1) > 9, "high", "low"), sites=np.arange(900) % 3)
    >>> model.predict([[8.0, 8.0], [1.0, 1.0]]).tolist()
    ['high', 'low']
    """

    @explain_unknown_arguments
    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        ranges: Ranges | None = None,
        classes: Sequence[Any] | None = None,
        model: str | nn.Module | ModelFactory = "linear",
        topology: Any = None,
        method: str = "auto",
        colluders: int = 1,
        rounds: int = 60,
        learning_rate: float = 8.0,
        clip: float = 0.5,
        random_state: int | None = None,
        verbose: bool = False,
        train_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.ranges = ranges
        self.classes = classes
        self.model = model
        self.topology = topology
        self.method = method
        self.colluders = colluders
        self.rounds = rounds
        self.learning_rate = learning_rate
        self.clip = clip
        self.random_state = random_state
        self.verbose = verbose
        self.train_options = train_options

    def fit(self, X: ArrayLike, y: ArrayLike, sites: ArrayLike | str | None = None) -> Self:
        """Train on records X [records, columns] with classes y [records]. `sites`: the site that holds each
        record, as an array or as a column of X; None: one party holds all records.
        """
        X, holders = self._without_sites(X, sites)
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        labels: AnyArray = np.asarray(y)
        if self.classes is None:
            warnings.warn(
                "The classes were taken from y, which no account covers. Give classes=[...], all classes "
                "that are publicly known.",
                UserWarning,
                stacklevel=2,
            )
        self.classes_ = np.unique(labels if self.classes is None else np.asarray(self.classes))
        unknown = np.setdiff1d(labels, self.classes_)
        if len(unknown):
            raise InputError(
                f"y: expected one of the classes {', '.join(map(str, self.classes_))}, got {unknown[0]!s}. "
                "Add it to classes, if it is publicly known."
            )
        if len(self.classes_) < 2:
            raise InputError("y: expected records of at least two classes, got only one class.")
        numbers = np.searchsorted(self.classes_, labels).astype(np.int64)
        self._train(X, numbers, holders, len(self.classes_), "cross-entropy")
        return self

    def predict(self, X: ArrayLike) -> AnyArray:
        """Return the most probable class of each record."""
        likeliest = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest])

    def predict_proba(self, X: ArrayLike) -> Floats:
        """Return the probability of each class [records, classes], in the order of `classes_`."""
        inputs = self._inputs(X)
        return self.result_.predict_proba(inputs)


class PrivateRegressor(RegressorMixin, _SiteEstimator):  # type: ignore[misc]
    """A private regressor for scikit-learn, trained by sites that keep their records.

    `target_range`: the public (low, high) of y; values outside are clipped in training. All other parameters
    are those of `PrivateClassifier`.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).uniform(0, 9, (900, 2))
    >>> model = PrivateRegressor(epsilon=1.0, ranges=(0, 9), target_range=(0, 18))
    >>> model = model.fit(X, X.sum(1), sites=np.arange(900) % 3)
    >>> bool(model.score(X, X.sum(1)) > 0.5)
    True
    """

    @explain_unknown_arguments
    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        delta: float = 1e-5,
        ranges: Ranges | None = None,
        target_range: Range | None = None,
        model: str | nn.Module | ModelFactory = "linear",
        topology: Any = None,
        method: str = "auto",
        colluders: int = 1,
        rounds: int = 60,
        learning_rate: float = 2.0,
        clip: float = 0.5,
        random_state: int | None = None,
        verbose: bool = False,
        train_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.ranges = ranges
        self.target_range = target_range
        self.model = model
        self.topology = topology
        self.method = method
        self.colluders = colluders
        self.rounds = rounds
        self.learning_rate = learning_rate
        self.clip = clip
        self.random_state = random_state
        self.verbose = verbose
        self.train_options = train_options

    def fit(self, X: ArrayLike, y: ArrayLike, sites: ArrayLike | str | None = None) -> Self:
        """Train on records X [records, columns] with targets y [records].

        `sites`: as in `PrivateClassifier`.
        """
        X, holders = self._without_sites(X, sites)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        low, high = self._target_limits()
        scaled = 2 * (np.clip(np.asarray(y, float), low, high) - low) / (high - low) - 1
        self._train(X, scaled.astype(np.float32), holders, 1, "mse")
        return self

    def predict(self, X: ArrayLike) -> Floats:
        """Return the predicted number of each record."""
        inputs = self._inputs(X)
        low, high = self._target_limits()
        return np.asarray(low + (self.result_.predict(inputs) + 1) / 2 * (high - low))

    def _target_limits(self) -> Range:
        if self.target_range is None:
            raise InputError(
                "target_range: expected the public (low, high) of y, got none. It is not taken from the "
                "records, because that would disclose something that no account covers."
            )
        (limits,) = _as_limits("target_range", self.target_range)
        return float(limits[0]), float(limits[1])


Value = TypeVar("Value")


def _cloned(value: Value) -> Value:
    from sklearn.base import clone

    return cast(Value, clone(value, safe=False))


def _as_limits(name: str, ranges: Any) -> Floats:
    """Return ranges as an array [ranges, 2]. Raise InputError unless each is (low, high) with low < high."""
    try:
        limits = np.atleast_2d(np.asarray(ranges, float))
    except (TypeError, ValueError):
        limits = np.empty((0, 0))
    if (
        limits.ndim != 2
        or limits.shape[1] != 2
        or not (np.isfinite(limits).all() and (limits[:, 0] < limits[:, 1]).all())
    ):
        raise InputError(
            f"{name}: expected (low, high) with low < high, or a list of them, got {ranges!r:.80}."
        )
    return limits
