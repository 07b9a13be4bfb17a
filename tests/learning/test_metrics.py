"""Every metric, compared with its definition as loops over records or pairs, with ties and rare classes."""

import math

import numpy as np
import pytest
import torch

from topdp.errors import InputError
from topdp.learning.metrics import DEFAULT_METRICS, METRICS, Metric, larger_is_better, named_metric

RECORDS = 60


def rounded_scores(generator, *shape):
    """Scores with few different values, so that there are many ties."""
    return generator.integers(-3, 4, shape) / 2


def of_classes(seed, classes=4):
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, classes, RECORDS)
    truth[:2] = (0, 1)
    return rounded_scores(generator, RECORDS, classes) + 1e-9 * np.arange(classes)[::-1], truth


def of_yes_and_no(seed, shape=()):
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, 2, (RECORDS, *shape))
    truth[:2] = [np.zeros(shape), np.ones(shape)]
    return rounded_scores(generator, RECORDS, *shape), truth


def pairs(scores, truth):
    """The Mann-Whitney statistic, pair by pair."""
    wins = [(yes > no) + (yes == no) / 2 for yes in scores[truth == 1] for no in scores[truth == 0]]
    return np.mean(wins) if wins else math.nan


def f1(said, truth):
    right, wrong, missed = (np.sum(x) for x in (said & truth, said & ~truth, ~said & truth))
    return 2 * right / (2 * right + wrong + missed) if right + wrong + missed else 0.0


def softmax(scores):
    """torch's softmax, whose last digit decides whether there is a tie."""
    return torch.tensor(scores).softmax(1).numpy()


def value(name, outputs, truth):
    return METRICS[name](torch.tensor(outputs), torch.tensor(truth)).numpy()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_metrics_of_classes_equal_their_definitions(seed, classes):
    scores, truth = of_classes(seed, classes)
    said = scores.argmax(1)
    assert value("accuracy", scores, truth) == pytest.approx(np.mean(said == truth))
    there = np.unique(truth)
    recalls = [np.mean(said[truth == one] == one) for one in there]
    assert value("balanced-accuracy", scores, truth) == pytest.approx(np.mean(recalls))
    found = value("per-class-accuracy", scores, truth)
    assert found.shape == (classes,) and found[there] == pytest.approx(recalls)
    assert np.isnan(np.delete(found, there)).all()
    known = np.union1d(there, said)
    expected = np.mean([f1(said == one, truth == one) for one in known])
    assert value("f1-macro", scores, truth) == pytest.approx(expected)
    if classes == 2:
        expected = pairs(scores[:, 1] - scores[:, 0], truth)
    else:
        expected = np.nanmean([pairs(softmax(scores)[:, one], truth == one) for one in range(classes)])
    assert value("auroc", scores, truth) == pytest.approx(expected)
    order = np.argsort(-scores, axis=1)[:, :5]
    assert value("top-5-accuracy", scores, truth) == pytest.approx(
        np.mean([label in best for label, best in zip(truth, order, strict=True)])
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("outputs", [(RECORDS,), (RECORDS, 1)])
@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_metrics_of_yes_no_questions_equal_their_definitions(seed, outputs, kind):
    scores, truth = of_yes_and_no(seed)
    said, yes = scores > 0, truth == 1
    given = scores.reshape(outputs), truth.astype(kind)
    assert value("accuracy", *given) == pytest.approx(np.mean(said == yes))
    assert value("auroc", *given) == pytest.approx(pairs(scores, truth))
    assert value("f1-macro", *given) == pytest.approx((f1(said, yes) + f1(~said, ~yes)) / 2)
    recalls = [np.mean(~said[~yes]), np.mean(said[yes])]
    assert value("per-class-accuracy", *given) == pytest.approx(recalls)
    assert value("balanced-accuracy", *given) == pytest.approx(np.mean(recalls))


@pytest.mark.parametrize("seed", range(5))
def test_metrics_of_several_labels_equal_their_definitions(seed):
    scores, truth = of_yes_and_no(seed, (3,))
    said, yes = scores > 0, truth == 1
    given = scores, truth.astype(np.float64)
    columns = range(3)
    assert value("accuracy", *given) == pytest.approx(np.mean(said == yes))
    assert value("per-class-accuracy", *given) == pytest.approx((said == yes).mean(0))
    assert value("auroc", *given) == pytest.approx(
        np.mean([pairs(scores[:, k], truth[:, k]) for k in columns])
    )
    assert value("f1-macro", *given) == pytest.approx(np.mean([f1(said[:, k], yes[:, k]) for k in columns]))


def test_labels_of_positions_count_one_by_one():
    scores, truth = of_classes(3)
    per_position = scores.reshape(20, 3, 4).transpose(0, 2, 1)  # classes on the second axis, as for the loss
    for name in ("accuracy", "f1-macro", "auroc", "balanced-accuracy", "top-5-accuracy"):
        assert value(name, per_position, truth.reshape(20, 3)) == pytest.approx(value(name, scores, truth))


@pytest.mark.parametrize("shape", [(), (1,), (2,), (2, 3)])
def test_metrics_of_numbers_equal_their_definitions(shape):
    generator = np.random.default_rng(1)
    said, true = (generator.normal(size=(RECORDS, *shape)) for _ in range(2))
    flat = np.reshape(said - true, (RECORDS, -1))
    assert value("mae", said, true) == pytest.approx(np.mean(np.abs(flat)))
    assert value("mse", said, true) == pytest.approx(np.mean(flat**2))
    total = np.reshape((true - true.mean(0)) ** 2, (RECORDS, -1)).sum(0)
    assert value("r2", said, true) == pytest.approx(np.mean(1 - (flat**2).sum(0) / total))


def test_r2_of_targets_that_are_all_equal():
    assert value("r2", np.ones(5), np.ones(5)) == 1 and value("r2", np.arange(5.0), np.ones(5)) == 0


def test_undefined_metrics_are_nan():
    assert math.isnan(value("auroc", np.arange(4.0), np.ones(4)))
    assert math.isnan(value("auroc", np.array([0.0, math.nan]), np.array([0, 1])))
    # One class of three never occurs: the others are averaged.
    scores, truth = of_classes(0, 3)
    two = truth % 2
    expected = np.mean([pairs(softmax(scores)[:, one], two == one) for one in range(2)])
    assert value("auroc", scores, two) == pytest.approx(expected)


@pytest.mark.parametrize("name", ["mae", "mse", "r2"])
def test_numbers_are_never_broadcast(name):
    with pytest.raises(InputError, match="Expected outputs in the shape of the targets"):
        value(name, np.zeros((5, 3)), np.zeros(5))


def test_metrics_state_whether_larger_is_better():
    better = {"mae": False, "mse": False, "loss": False, "mine": None}
    for name in [*METRICS, *better]:
        assert larger_is_better(name) is better.get(name, True)
    assert all(name in METRICS for names in DEFAULT_METRICS.values() for name in names)


def test_a_metric_can_be_given_by_name_or_function():
    def bias(outputs, targets):
        return (outputs - targets).mean()

    assert named_metric("r2") is METRICS["r2"] and named_metric(bias).name == "bias"
    mine = Metric("mine", bias, larger_is_better=False)
    assert named_metric(mine) is mine and float(mine(torch.ones(2), torch.zeros(2))) == 1
    with pytest.raises(InputError, match=r"one of the metrics accuracy, .* or a function .* got 'r3'"):
        named_metric("r3")


def test_a_mean_over_records_is_the_mean_of_its_values():
    scores, truth = (torch.tensor(part) for part in of_classes(2))
    for metric in METRICS.values():
        if metric.each is not None and metric.about == "classes":
            each = metric.each(scores, truth)
            assert each.shape == (RECORDS,) and metric(scores, truth) == each.mean()
