"""`topdp.describe`: its estimates against the tables themselves, and errors beside predicted deviations."""

import numpy as np
import pytest

import topdp
from topdp import topology
from topdp.data.readers.table_schema import Schema, SchemaError
from topdp.errors import InputError
from topdp.runs.statistics.table_statistics import _Layout

SCHEMA = Schema(
    ranges={"age": (0, 100), "dose": (-5, 5), "sum": (0, 10)},
    categories={"job": ("cook", "nurse")},
    target="ill",
    classes=("no", "yes"),
    ignore=("id",),
)


def sites(agents=4, records=2500, seed=0):
    generator = np.random.default_rng(seed)
    tables = []
    for agent in range(agents):
        count = records + 300 * agent
        age = np.clip(generator.normal(45, 15, count), 0, 100)
        dose = 0.05 * (age - 45) + generator.normal(0, 1, count)
        gaps = generator.random(count) < 0.1
        jobs = generator.choice(["cook", "nurse", "smith"], count, p=[0.2, 0.5, 0.3]).astype(object)
        jobs[generator.random(count) < 0.05] = None
        tables.append(
            {
                "id": np.arange(count),
                "age": age,
                "dose": np.clip(dose, -5, 5),
                "sum": np.where(gaps, np.nan, generator.uniform(0, 10, count)),
                "job": jobs,
                "ill": generator.choice(["no", "yes"], count, p=[0.9, 0.1]),
            }
        )
    return tables


def column(tables, name):
    return np.concatenate([table[name] for table in tables])


def truth_of(tables, edges, quantiles=(0.25, 0.5, 0.75)):
    """The same statistics of the tables without noise, as pairs (path, value)."""
    values = {}
    for name in ("age", "dose", "sum"):
        numbers = column(tables, name).astype(float)
        seen = numbers[~np.isnan(numbers)]
        values[name, "mean"], values[name, "deviation"] = seen.mean(), seen.std()
        values[name, "missing"] = float(np.isnan(numbers).sum())
        values[name, "counts"] = np.histogram(seen, edges[name])[0]
        values[name, "quantiles"] = np.quantile(seen, quantiles)
    jobs = column(tables, "job")
    counts = [(jobs == "cook").sum(), (jobs == "nurse").sum(), (jobs == "smith").sum()]
    values["job", "counts"] = [*counts, sum(job is None for job in jobs)]
    ill = column(tables, "ill")
    values["ill", "counts"] = [(ill == "no").sum(), (ill == "yes").sum(), 0, 0]
    return values


def numbers_of(part):
    return np.array(list(part.values()) if isinstance(part, dict) else part, float)


def test_without_noise_the_statistics_are_those_of_the_table():
    tables = sites()
    found = topdp.describe(tables, SCHEMA, topology.ring(4), epsilon=1e9, bins=40)
    truth = truth_of(tables, {name: column.edges for name, column in found.columns.items()})
    for (name, statistic), value in truth.items():
        estimate = numbers_of(found.columns[name].estimates[statistic])
        # Quantiles are interpolated in bins of a fortieth of the range, counts are whole.
        tolerance = 2.5 if statistic == "quantiles" else 0.5 if statistic in ("counts", "missing") else 1e-3
        np.testing.assert_allclose(estimate, value, atol=tolerance, rtol=1e-3 * (statistic == "deviation"))
    expected = np.corrcoef(column(tables, "age"), column(tables, "dose"))[0, 1]
    assert found.correlations["age", "dose"][0] == pytest.approx(expected, abs=1e-3)
    assert set(found.correlations) == {("age", "dose"), ("age", "sum"), ("dose", "sum")}


def test_errors_are_as_large_as_their_predicted_deviations():
    """At ε = 1: all errors of many releases, divided by their predictions, have the standard deviation 1."""
    tables = sites(3, 3000)
    ratios = {}
    edges = {name: np.linspace(*SCHEMA.ranges[name], 17) for name in SCHEMA.ranges}
    truth = truth_of(tables, edges)
    exact = topdp.describe(tables, SCHEMA, epsilon=1e9)  # quantiles and correlations as bins define them
    for seed in range(12):
        found = topdp.describe(tables, SCHEMA, epsilon=1.0, noise_seed=seed)
        for name, statistic in truth:
            parts = [found.columns[name].estimates, exact.columns[name].estimates, found.columns[name].noise]
            estimate, value, deviation = (numbers_of(part[statistic]) for part in parts)
            ratios.setdefault(statistic, []).extend(((estimate - value) / deviation).ravel())
        for pair, (value, deviation) in found.correlations.items():
            ratios.setdefault("correlation", []).append((value - exact.correlations[pair][0]) / deviation)
    spreads = {statistic: float(np.sqrt(np.mean(np.square(each)))) for statistic, each in ratios.items()}
    # The mean square of k values has a relative deviation of √(2/k); k is 36 for most, and they are not
    # independent. Quantiles are not linear in the noise.
    assert all(0.7 < spread < 1.35 for spread in spreads.values()), spreads
    assert 0.9 < spreads["counts"] < 1.1


def test_no_vector_is_longer_than_the_bound_and_some_reach_it():
    tables = [
        {"age": [0.0, 100.0, np.nan, 50.0], "dose": [-5, 5, np.nan, 5], "sum": [10, 10, np.nan, 0]}
        | {"job": ["cook", None, "x", "nurse"], "ill": ["no", "yes", "no", None], "id": [1, 2, 3, 4]}
    ]
    for correlations in (True, False):
        layout = _Layout(SCHEMA, 8, correlations)
        norms = np.linalg.norm(layout.vectors(topdp_table(tables[0])), axis=1)
        assert norms.max() <= 1 + 1e-12 and norms.max() == pytest.approx(1)
        assert sum(layout.shares.values()) == pytest.approx(1)


def topdp_table(frame):
    from topdp.data.readers.raw_tables import read_frame

    return read_frame(frame)


def test_the_shares_leave_the_least_total_variance():
    """Σ k·R²/s is the sum of variances; no other shares of the same total leave less."""
    layout = _Layout(SCHEMA, 8, True)
    blocks = layout._blocks()
    shares = np.array(list(layout.shares.values()))
    costs = np.array([count * norm**2 for _, count, norm in blocks])
    best = (costs / shares).sum()
    generator = np.random.default_rng(0)
    for _ in range(50):
        other = shares * np.exp(generator.normal(0, 0.1, len(shares)))
        assert (costs / (other / other.sum())).sum() >= best


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"schema": {"ranges": {"age": [0, 1]}}}, SchemaError, "range or a list of public values .*'id'"),
        ({"schema": {}}, SchemaError, "range or a list of public values"),
        ({"schema": SCHEMA, "bins": 1}, InputError, "at least 2 bins"),
        ({"schema": SCHEMA, "quantiles": [0.5, 1]}, InputError, "quantiles between 0 and 1"),
        ({"schema": SCHEMA, "sites": "a.csv"}, InputError, "list with the table of each site"),
        ({"schema": SCHEMA, "sites": []}, Exception, "at least one site"),
        ({"schema": SCHEMA, "sites": [{"age": [1]}]}, Exception, "expected the column '.*' of the schema"),
    ],
)
def test_wrong_use_is_refused(changes, error, says):
    given = {"sites": sites(2, 10), "topology": topology.complete(2), **changes}
    with pytest.raises(error, match=says):
        topdp.describe(given.pop("sites"), given.pop("schema"), given.pop("topology"), **given)
