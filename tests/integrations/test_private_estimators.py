"""Tests of the estimators for scikit-learn: their checks, sites, public ranges, costs and errors."""

import importlib
import pickle
import sys

import numpy as np
import pytest
import torch

import topdp
from topdp import topology
from topdp.errors import TopdpError
from topdp.privacy import epsilon_of

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from topdp.integrations._fit_costs import FitCost, FitHistory
from topdp.sklearn import PrivateClassifier, PrivateRegressor

X = np.random.default_rng(0).uniform(0, 9, (600, 3))
Y = np.where(X[:, 0] + X[:, 1] > 9, "high", "low")
SITES = np.array(["north", "south", "east"])[np.arange(600) % 3]
REPEATABLE = {"noise_seed": 0}


def classifier(**changes):
    return PrivateClassifier(**{"ranges": (0, 9), "classes": ["high", "low"], "rounds": 30, **changes})


def regressor(**changes):
    return PrivateRegressor(**{"ranges": (0, 9), "target_range": (0, 18), "rounds": 30, **changes})


ARRAY_API = {"check_array_api_input": "scikit-learn runs it only with SCIPY_ARRAY_API=1"}
NEW_NOISE = dict.fromkeys(
    [
        "check_fit_idempotent",
        "check_supervised_y_2d",
        "check_regressors_int",
        "check_regressor_data_not_an_array",
    ],
    "it compares two fits, and the noise is new in every fit",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [REPEATABLE, {}], ids=["noise seed", "new noise"])
@pytest.mark.parametrize("kind", [PrivateClassifier, PrivateRegressor])
def test_the_checks_of_scikit_learn_pass_but_for_named_exceptions(kind, options):
    changes = {"ranges": (-8, 8)}
    if kind is PrivateRegressor:
        changes = {"ranges": (-3, 3), "target_range": (-3, 3)}
    estimator = kind(epsilon=1000.0, rounds=60, train_options=options, **changes)
    expected = ARRAY_API if options else {**ARRAY_API, **NEW_NOISE}
    done = check_estimator(estimator, expected_failed_checks=expected, on_skip=None)
    assert len(done) > 40


def test_fits_are_those_of_train_with_each_sites_own_records():
    changes = {"train_options": REPEATABLE, "rounds": 5}
    fitted = classifier(**changes).fit(X, Y, sites=SITES)
    assert fitted.sites_ == ["east", "north", "south"] and fitted.result_.labels == ("east", "north", "south")
    scaled = ((2 * X / 9 - 1) / np.sqrt(3)).astype(np.float32)
    labels = (Y == "low").astype(int)
    shards = topdp.Shards.from_arrays([
        (scaled[name == SITES], labels[name == SITES]) for name in fitted.sites_
    ])  # fmt: skip
    network = torch.nn.Linear(3, 2)
    torch.nn.init.zeros_(network.weight)
    torch.nn.init.zeros_(network.bias)
    expected = topdp.train(
        network, shards, topology.complete(3), method="correlated", epsilon=1.0, rounds=5,
        learning_rate=8.0, clip=0.5, **REPEATABLE,
    )  # fmt: skip
    assert torch.equal(fitted.result_.estimates, expected.estimates)
    assert np.array_equal(fitted.predict_proba(X), expected.predict_proba(scaled))
    assert (fitted.predict(X) == fitted.classes_[expected.predict(scaled)]).all()


def test_sites_may_be_a_column_which_is_no_input():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b", "c"]).assign(site=SITES)
    ranges = dict.fromkeys("abc", (0, 9))
    fitted = classifier(ranges=ranges, train_options=REPEATABLE).fit(frame, Y, sites="site")
    assert fitted.n_features_in_ == 3
    other = classifier(train_options=REPEATABLE).fit(X, Y, sites=SITES)
    expected = other.predict_proba(X)
    assert np.array_equal(fitted.predict_proba(frame), expected)
    assert np.array_equal(fitted.predict_proba(frame.drop(columns="site")), expected)


@pytest.mark.parametrize(("sites", "method"), [(1, "central"), (2, "dsgd"), (3, "correlated")])
def test_the_method_follows_from_the_number_of_sites(sites, method):
    fitted = regressor(rounds=2).fit(X, X[:, 0], sites=np.arange(600) % sites)
    assert fitted.result_.config.method.name == method
    assert fitted.result_.privacy.adaptive.largest == pytest.approx(1.0, rel=1e-5)


def test_a_fit_without_sites_is_central_and_says_so():
    with pytest.warns(
        UserWarning, match="PrivateRegressor.fit has no sites, so it trains by the method cent"
    ):
        fitted = regressor().fit(X, X[:, 0] + X[:, 1])
    assert fitted.result_.config.method.name == "central" and fitted.result_.labels is None
    assert fitted.score(X, X[:, 0] + X[:, 1]) > 0.9


def test_classes_from_y_are_warned_of_and_stated_classes_are_not():
    with pytest.warns(UserWarning, match="The classes were taken from y, which no account covers"):
        classifier(classes=None, rounds=2).fit(X, Y, sites=SITES)
    fitted = classifier(classes=["low", "middle", "high"], rounds=2).fit(X, Y, sites=SITES)  # no warning
    assert fitted.predict_proba(X).shape == (600, 3) and fitted.classes_.tolist() == ["high", "low", "middle"]


def test_a_record_is_scaled_by_public_ranges_alone_and_clipped_to_them():
    fitted = regressor(ranges=[(0, 9), (-9, 9), (0, 18)], rounds=2).fit(X, X[:, 0], sites=SITES)
    alone = fitted._scaled(X[:1])
    assert np.array_equal(alone, fitted._scaled(np.concatenate([X[:1], 1000 * X]))[:1])
    assert np.allclose(alone[0] * np.sqrt(3), X[0] * [2 / 9, 1 / 9, 1 / 9] - [1, 0, 1])
    assert np.array_equal(
        fitted._scaled(np.array([[99.0, -99, 9]])), fitted._scaled(np.array([[9.0, -9, 9]]))
    )
    assert np.linalg.norm(fitted._scaled(1e6 * (X - 4)), axis=1).max() <= 1 + 1e-6


def test_clones_share_the_record_of_fits_and_each_further_fit_states_their_cost():
    first = regressor(rounds=3).fit(X, X[:, 0], sites=SITES)
    mu = first.result_.privacy.adaptive.mu.max()
    with pytest.warns(UserWarning, match=r"fit 2 of this estimator and its clones") as warned:
        second = clone(first).fit(X, X[:, 0], sites=SITES)
    total, delta = second._fit_history.cost()
    assert delta == 1e-5 and second._fit_history is first._fit_history
    assert total == pytest.approx(epsilon_of(np.sqrt(2) * mu, 1e-5))
    assert 1 < total < 2 and f"ε = {np.ceil(1000 * total) / 1000:g}"[:7] in str(warned[0].message)
    regressor(rounds=3).fit(X, X[:, 0], sites=SITES)  # another estimator: no warning


@pytest.mark.filterwarnings("ignore:This is fit")
def test_cross_validation_and_search_warn_what_they_cost():
    with pytest.warns(UserWarning, match="fit 3 of this estimator and its clones"):
        scores = cross_val_score(classifier(), X, Y, params={"sites": SITES}, cv=3)
    assert scores.min() > 0.8
    search = GridSearchCV(classifier(), {"rounds": [5, 30]}, cv=2)
    with pytest.warns(UserWarning, match="fit 5 of this"):
        search.fit(X, Y, sites=SITES)
    assert search.best_estimator_.result_.config.rounds in (5, 30)


def test_the_cost_of_fits_is_the_smaller_of_the_sum_and_the_composition():
    def cost(*fits):
        return FitHistory([FitCost(*fit) for fit in fits]).cost()

    one = epsilon_of(0.2, 1e-5)
    assert cost((one, 1e-5, 0.2)) == (pytest.approx(one), 1e-5)
    assert cost((one, 1e-5, 0.2), (one, 1e-6, 0.2)) == (pytest.approx(epsilon_of(0.08**0.5, 1e-6)), 1e-6)
    assert cost((1.0, 1e-5, None), (2.0, 1e-5, 0.5)) == (3.0, 2e-5)  # no μ of a sampled loss
    assert cost((0.1, 1e-5, 3.0), (0.1, 1e-5, 3.0)) == (0.2, 2e-5)  # amplified: μ is a loose bound
    assert cost((float("inf"), 1e-5, None)) == (float("inf"), 1e-5)


def test_pipelines_pickles_and_parameters():
    pipeline = make_pipeline(FunctionTransformer(lambda x: 2 * x / 9 - 1), classifier(ranges=(-1, 1)))
    pipeline.fit(X, Y, privateclassifier__sites=SITES)
    assert pipeline.score(X, Y) > 0.9
    fitted = pipeline[-1]
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(X / 5 - 1), fitted.predict_proba(X / 5 - 1))
    assert clone(fitted).get_params() == fitted.get_params()
    assert classifier().set_params(epsilon=3.0).epsilon == 3.0


def test_models_of_the_user():
    made = []

    def factory(inputs, outputs):
        made.append((inputs, outputs))
        return torch.nn.Linear(inputs, outputs)

    regressor(model=factory, rounds=2).fit(X, X[:, 0], sites=SITES)
    classifier(model=torch.nn.Linear(3, 2), rounds=2).fit(X, Y, sites=SITES)
    mlp = classifier(model="mlp").fit(X, Y, sites=SITES)
    assert made == [(3, 1)] and mlp.score(X, Y) > 0.85


def test_scikit_learn_is_optional(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "sklearn"]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("topdp.sklearn", "topdp.integrations.private_estimators"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"Expected scikit-learn .*'.\[sklearn\]'"):
        importlib.import_module("topdp.sklearn")


WRONG = {
    "no ranges": (lambda: classifier(ranges=None).fit(X, Y, SITES), "ranges: expected the public range"),
    "no target range": (
        lambda: regressor(target_range=None).fit(X, X[:, 0], SITES),
        "target_range: expected",
    ),
    "reversed range": (lambda: classifier(ranges=(9, 0)).fit(X, Y, SITES), "low < high"),
    "too few ranges": (lambda: classifier(ranges=[(0, 9)] * 2).fit(X, Y, SITES), "each of 3 columns, got 2"),
    "named ranges": (lambda: classifier(ranges={"a": (0, 9)}).fit(X, Y, SITES), "for an array without names"),
    "unknown class": (
        lambda: classifier(classes=["low", "no"]).fit(X, Y, SITES),
        "one of the classes low, no",
    ),
    "one class": (lambda: classifier(classes=["low"]).fit(X, ["low"] * 600, SITES), "at least two classes"),
    "too few sites": (lambda: classifier().fit(X, Y, SITES[:5]), "sites: expected one value for each of 600"),
    "sites that are no column": (lambda: classifier().fit(X, Y, "hospital"), "name of a column of X"),
    "one site": (
        lambda: classifier(method="dsgd").fit(X, Y, sites=["a"] * 600),
        "expected 'central' or 'auto' for the records of one party",
    ),
    "unknown model": (lambda: classifier(model="forest").fit(X, Y, SITES), "model: expected 'linear', 'mlp'"),
    "unknown method": (lambda: classifier(method="fedavg").fit(X, Y, SITES), "method.name: got 'fedavg'"),
    "no budget": (lambda: classifier(epsilon=0.0).fit(X, Y, SITES), "privacy.epsilon: expected"),
    "another library's word": (
        lambda: PrivateClassifier(lr=0.1),
        "has no argument 'lr'. Use 'learning_rate'",
    ),
}


@pytest.mark.parametrize("use", WRONG)
def test_wrong_uses_are_explained(use):
    call, message = WRONG[use]
    with pytest.raises(TopdpError, match=message) as raised:
        call()
    assert raised.value.code == 2 and isinstance(raised.value, ValueError)


def test_an_estimator_must_be_fitted():
    for estimator in (classifier(), regressor()):
        with pytest.raises(NotFittedError):
            estimator.predict(X)
