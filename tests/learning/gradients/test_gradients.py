"""Clipped gradients of all agents, compared with a plain loop over examples."""

from __future__ import annotations

import math
import re
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gradient_models import CLASSES, MODELS, OwnMatrix, problem, slow_model
from topdp.learning.gradients import ClippedGradients
from topdp.learning.gradients.convolutions import MaxPoolRule
from topdp.learning.gradients.layer_rules import FoldedModule
from topdp.learning.gradients.tape import Tape
from topdp.learning.models import FlatModel, mlp


def one_by_one(flat: FlatModel, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """[b, d]: the gradient of each example, by torch alone."""
    module = flat.load(row)
    gradients = []
    for i in range(len(x)):
        module.zero_grad()
        nn.functional.cross_entropy(module(x[i : i + 1]), y[i : i + 1]).backward()
        trained = [p for p in module.parameters() if p.requires_grad]
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
        gradients.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(gradients)


def by_hand(flat: FlatModel, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor, clip: float) -> Tensor:
    result = torch.zeros_like(rows)
    for i, row in enumerate(rows):
        for gradient, weight in zip(one_by_one(flat, row, x[i], y[i]), weights[i], strict=True):
            result[i] += weight * gradient / max(1.0, float(gradient.norm()) / clip)
    return result


def middle_norm(flat: FlatModel, rows: Tensor, x: Tensor, y: Tensor) -> float:
    """A clip that some examples exceed and others do not."""
    norms = torch.cat([one_by_one(flat, row, x[i], y[i]).norm(dim=1) for i, row in enumerate(rows)])
    clip = float(norms.quantile(0.5))
    assert (norms > 1.001 * clip).any() and (norms < 0.999 * clip).any()
    return clip


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:LSTM with projections")  # of torch alone, in float32
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", MODELS)
def test_equals_a_loop_over_examples(name, dtype, tolerance):
    flat, rows, x, y, weights = problem(name, dtype)
    clip = middle_norm(flat, rows, x, y)
    gradients = ClippedGradients(flat, clip)
    result = gradients.clipped_sum(rows, x, y, weights)
    assert gradients.fast
    assert relative(result, by_hand(flat, rows, x, y, weights, clip)) < tolerance


@pytest.mark.parametrize("name", MODELS)
def test_outputs_equal_a_loop_over_agents(name):
    flat, rows, x, *_ = problem(name, torch.float64)
    expected = torch.stack([flat.load(row).eval()(x[0]) for row in rows])
    assert torch.allclose(ClippedGradients(flat, 1.0).outputs(rows, x[0]), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "cnn", "tokens", "wide convolution", "shared layer"])
@pytest.mark.parametrize("microbatch", [1, 2, 7, 1000])
def test_microbatches_do_not_change_the_result(name, microbatch):
    flat, rows, x, y, weights = problem(name, torch.float64)
    gradients = ClippedGradients(flat, 0.5)
    whole = gradients.clipped_sum(rows, x, y, weights)
    parts = gradients.clipped_sum(rows, x, y, weights, microbatch=microbatch)
    assert relative(parts, whole) < 1e-13


def test_adds_to_out():
    flat, rows, x, y, weights = problem("cnn", torch.float64)
    gradients = ClippedGradients(flat, 0.5)
    plain = gradients.clipped_sum(rows, x, y, weights)
    wide = torch.ones(len(rows), flat.dimension + 3, dtype=torch.float64)
    out = wide[:, : flat.dimension]
    assert gradients.clipped_sum(rows, x, y, weights, out=out) is out
    assert relative(out, 1 + plain) < 1e-14
    assert (wide[:, flat.dimension :] == 1).all()


def test_rows_of_agents_do_not_influence_each_other():
    flat, rows, x, y, weights = problem("group norm", torch.float64)
    gradients = ClippedGradients(flat, 0.5)
    before = gradients.clipped_sum(rows, x, y, weights)
    rows[1], x[1], y[1], weights[1] = rows[0], x[0].flip(0), y[0].flip(0), 1.0
    after = gradients.clipped_sum(rows, x, y, weights)
    assert torch.equal(before[[0, 2]], after[[0, 2]])
    assert not torch.equal(before[1], after[1])


@pytest.mark.parametrize("name", ["mlp", "cnn", "tokens", "wide tokens", "wide convolution", "group norm"])
def test_padding_adds_exactly_nothing(name):
    flat, rows, x, y, weights = problem(name, torch.float32)
    gradients = ClippedGradients(flat, 0.5)
    before = gradients.clipped_sum(rows, x, y, weights)
    if x.is_floating_point():
        x[0, 1] = x[-1, -1] = torch.finfo(torch.float32).max
    else:
        x[0, 1] = x[-1, -1] = 8
    y[0, 1] = y[-1, -1] = 3
    after = gradients.clipped_sum(rows, x, y, weights)
    assert torch.equal(before, after)


@pytest.mark.parametrize("frozen", ["1", "1.weight", "3"])
def test_frozen_parameters_are_not_in_the_row(frozen):
    """A frozen layer runs unchanged; of a partly frozen layer the rest is trained. Both equal the loop."""
    module = mlp(12, 7, CLASSES).double()
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    flat = FlatModel(module)
    trained = sum(p.numel() for p in module.parameters() if p.requires_grad)
    assert flat.dimension == trained < sum(p.numel() for p in module.parameters())
    _, whole, x, y, weights = problem("mlp", torch.float64)
    rows = whole[:, :trained].contiguous()
    clip = middle_norm(flat, rows, x, y)
    gradients = ClippedGradients(flat, clip)
    result = gradients.clipped_sum(rows, x, y, weights)
    assert gradients.fast
    assert relative(result, by_hand(flat, rows, x, y, weights, clip)) < 1e-12
    loaded = dict(flat.load(rows[0]).named_parameters())
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            assert torch.equal(loaded[name], parameter)
    expected = torch.stack([flat.load(row)(x[0]) for row in rows])
    torch.testing.assert_close(gradients.outputs(rows, x[0]), expected)


def test_statistics_are_weighted_means_per_agent():
    flat, rows, x, y, weights = problem("mlp", torch.float64)
    clip = middle_norm(flat, rows, x, y)
    result, statistics = ClippedGradients(flat, clip).clipped_sum_and_statistics(
        rows, x, y, weights, microbatch=2
    )
    assert relative(result, by_hand(flat, rows, x, y, weights, clip)) < 1e-12
    for i, row in enumerate(rows):
        losses = nn.functional.cross_entropy(flat.load(row)(x[i]), y[i], reduction="none").detach()
        clipped = (one_by_one(flat, row, x[i], y[i]).norm(dim=1) > clip).double()
        assert math.isclose(float(statistics.loss[i]), float((losses * weights[i]).sum() / weights[i].sum()))
        assert math.isclose(
            float(statistics.clipped[i]), float((clipped * weights[i]).sum() / weights[i].sum())
        )


def test_a_custom_loss():
    flat, rows, x, _, weights = problem("mlp", torch.float64)
    targets = torch.randn(3, 5, CLASSES, dtype=torch.float64)
    gradients = ClippedGradients(flat, 1e9, lambda outputs, wanted: (outputs - wanted).square().sum(1))
    result = gradients.clipped_sum(rows, x, targets, weights)
    leaf = rows.clone().requires_grad_()
    outputs = torch.stack(
        [torch.func.functional_call(flat.module, flat.named(r), (x[i],)) for i, r in enumerate(leaf)]
    )
    (weights.unsqueeze(2) * (outputs - targets).square()).sum().backward()
    assert relative(result, leaf.grad) < 1e-12


def test_cross_entropy_over_positions_is_their_mean():
    flat = FlatModel(nn.Conv1d(3, CLASSES, 1).double())
    rows = flat.flatten().repeat(2, 1)
    x, y = torch.randn(2, 2, 3, 5, dtype=torch.float64), torch.randint(CLASSES, (2, 2, 5))
    result = ClippedGradients(flat, 0.3).clipped_sum(rows, x, y)
    assert relative(result, by_hand(flat, rows, x, y, torch.ones(2, 2), 0.3)) < 1e-12


class ReadsWeight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.layer.weight, self.layer.bias)


class Centres(nn.Module):
    """Mixes the examples of a batch, in training only."""

    def forward(self, x: Tensor) -> Tensor:
        return x - 0.5 * x.mean(0) if self.training else x


class TiedEmbeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Embedding(CLASSES, 6, padding_idx=0), nn.Embedding(CLASSES, 6)
        self.other.weight = self.one.weight
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.one(x) * self.other(x.flip(1))).mean(1))


class TiedToAPart(nn.Module):
    """The packed weights of attention are also those of a linear layer: norms of parts would not add up."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.wide = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 18)
        self.wide.weight = self.layer.in_proj_weight
        self.last = nn.Linear(18, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = x.unsqueeze(1) * torch.ones(1, 2, 1, dtype=x.dtype)
        return self.last(torch.tanh(self.wide(self.layer(h, h, h)[0].mean(1))))


class OwnEmbedding(nn.Embedding):
    """A subclass of Embedding; if each example had a copy of the table, padding would be lost."""


class WithOwnEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = OwnEmbedding(CLASSES, 6, padding_idx=0), nn.Linear(6, 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.table(x).mean(1))[:, :CLASSES]


class Branches(nn.Module):
    """Control flow that depends on data: vmap rejects it, and a folded batch takes one branch for all."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.sum()) > 0 else self.layer(-x) * 2


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.last = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x * 2).mul_(3))


SLOW = {
    "custom layer": (slow_model, r"0 \(OwnMatrix\)"),
    "weight read": (ReadsWeight, r"layer \(Linear\): weight is read outside"),
    "branches": (Branches, "vmap refuses"),
    "in place": (InPlace, "in-place"),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, CLASSES)), "Parametrized"),
    "tied to a part": (TiedToAPart, "is tied to .*, which is a part of it"),
    "tied embeddings": (TiedEmbeddings, "tied between Embedding .* and Embedding"),
    "embedding of one's own": (WithOwnEmbedding, r"table \(OwnEmbedding\)"),
}


@pytest.mark.parametrize("name", SLOW)
def test_other_models_take_the_slow_path_with_one_warning(name):
    make, reason = SLOW[name]
    torch.manual_seed(0)
    flat = FlatModel(make().double())
    rows = flat.flatten() + 0.1 * torch.randn(3, flat.dimension, dtype=torch.float64)
    x = (
        torch.randint(CLASSES, (3, 5, 7))
        if "embedding" in name
        else torch.randn(3, 5, 6, dtype=torch.float64)
    )
    y, weights = torch.randint(CLASSES, (3, 5)), torch.rand(3, 5, dtype=torch.float64)
    clip = middle_norm(flat, rows, x, y)
    gradients = ClippedGradients(flat, clip)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = gradients.clipped_sum(rows, x, y, weights, microbatch=4)
    announced = [str(w.message) for w in caught if "slow path" in str(w.message)]
    assert len(announced) == 1 and re.search(reason, announced[0])
    assert not gradients.fast
    assert relative(result, by_hand(flat, rows, x, y, weights, clip)) < 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients.clipped_sum(rows, x[:, :2], y[:, :2])
        outputs = gradients.outputs(rows, x[0])
    assert torch.allclose(outputs, torch.stack([flat.load(row).eval()(x[0]) for row in rows]))


def test_models_that_mix_examples_run_each_example_as_a_batch_and_warn():
    torch.manual_seed(0)
    flat = FlatModel(nn.Sequential(nn.Linear(6, 6), Centres(), nn.Linear(6, CLASSES)).double())
    rows = flat.flatten() + 0.1 * torch.randn(3, flat.dimension, dtype=torch.float64)
    x, y = torch.randn(3, 5, 6, dtype=torch.float64), torch.randint(CLASSES, (3, 5))
    weights = torch.rand(3, 5, dtype=torch.float64)
    clip = middle_norm(flat, rows, x, y)
    gradients = ClippedGradients(flat, clip)
    with pytest.warns(UserWarning, match="influence each other"):
        result = gradients.clipped_sum(rows, x, y, weights, microbatch=4)
    assert relative(result, by_hand(flat, rows, x, y, weights, clip)) < 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gradients.clipped_sum(rows, x[:, :2], y[:, :2])
        outputs = gradients.outputs(rows, x[0])
    assert torch.allclose(outputs, torch.stack([flat.load(row).eval()(x[0]) for row in rows]))


def test_dropout_does_not_hide_that_a_model_mixes_examples():
    module = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), Centres(), nn.Linear(6, CLASSES))
    gradients = ClippedGradients(module, 1.0)
    rows = gradients.flat.flatten().repeat(2, 1)
    with pytest.warns(UserWarning, match="influence each other"):
        gradients.clipped_sum(rows, torch.randn(2, 4, 6), torch.zeros(2, 4, dtype=torch.long))


class LooksAtItsPool(nn.Module):
    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.conv, self.pool, self.last = nn.Conv2d(1, 3, 3, padding=1), pool, nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pool(self.conv(x)) if isinstance(self.pool, nn.MaxPool2d) else self.conv(x)
        return self.last(pooled.flatten(1) * self.pool.kernel_size)


def test_a_model_may_read_attributes_of_its_pooling_layer():
    gradients = ClippedGradients(LooksAtItsPool(nn.MaxPool2d(2)), 1.0)
    rows = gradients.flat.flatten().repeat(2, 1)
    gradients.clipped_sum(rows, torch.rand(2, 3, 1, 8, 8), torch.zeros(2, 3, dtype=torch.long))
    assert gradients.fast


def hooked() -> nn.Module:
    pool = nn.MaxPool2d(2)
    pool.register_forward_hook(lambda *_: None)
    return pool


class OwnPool(nn.MaxPool2d):
    pass


@pytest.mark.parametrize(
    ("pool", "side_by_side"),
    [
        (nn.MaxPool2d(2), True), (nn.MaxPool2d((2, 3)), True), (nn.MaxPool2d(3, 3, 0, 1), True),
        (nn.MaxPool2d(2, 1), False), (nn.MaxPool2d(2, padding=1), False),
        (nn.MaxPool2d(2, dilation=2), False),
        (nn.MaxPool2d(2, return_indices=True), False), (nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.MaxPool2d((2,)), False), (nn.MaxPool2d([2, 2]), False), (nn.MaxPool2d(2, stride=()), False),
        (nn.MaxPool2d(np.int64(2)), False), (nn.MaxPool2d(9), False), (nn.AvgPool2d(2), False),
        (hooked(), False), (OwnPool(2), False),
    ],
)  # fmt: skip
def test_only_disjoint_windows_use_topdps_pooling_kernel(pool, side_by_side):
    model = FoldedModule(FlatModel(nn.Sequential(nn.Conv2d(1, 3, 3), pool)), Tape()).module
    assert (type(model[1]) is MaxPoolRule) is side_by_side
    assert type(pool) is not MaxPoolRule  # the user's layer is not changed


def test_a_new_shape_of_example_is_checked_again():
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            h = self.last(x).mean(1)
            return h if x.shape[1] < 3 else h - 0.5 * h.mean(0)

    gradients = ClippedGradients(Sometimes(), 1.0)
    rows, y = gradients.flat.flatten().repeat(2, 1), torch.zeros(2, 4, dtype=torch.long)
    gradients.clipped_sum(rows, torch.randn(2, 4, 2, 6), y)
    assert gradients.fast
    with pytest.warns(UserWarning, match="influence each other"):
        gradients.clipped_sum(rows, torch.randn(2, 4, 3, 6), y)


def test_a_buffer_that_the_model_writes_is_refused():
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, CLASSES)
            self.register_buffer("seen", torch.zeros(6))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.add_(x.detach().mean(0))
            return self.layer(x)

    gradients = ClippedGradients(Remembers(), 1.0)
    with pytest.raises(ValueError, match=r"model\.seen"):
        gradients.clipped_sum(gradients.flat.flatten()[None], torch.ones(1, 2, 6), torch.zeros(1, 2).long())


def test_dropout_draws_for_each_example_and_takes_the_fast_path():
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(50, CLASSES))
    gradients = ClippedGradients(module, 1e9)
    rows, y = gradients.flat.flatten().repeat(2, 1), torch.zeros(2, 2, dtype=torch.long)
    one = gradients.clipped_sum(rows, torch.ones(2, 2, 50), y)
    two = gradients.clipped_sum(rows, torch.ones(2, 2, 50), y)
    assert gradients.fast
    assert not torch.equal(one[0], one[1])
    assert not torch.equal(one, two)
    assert torch.allclose(gradients.outputs(rows, torch.ones(1, 50))[0], module.eval()(torch.ones(1, 50)))
    module.eval()
    still = ClippedGradients(module, 1e9).clipped_sum(rows, torch.ones(2, 2, 50), y)
    assert torch.equal(still[0], still[1])


@pytest.mark.filterwarnings("ignore:Per-example gradients")
def test_dropout_draws_for_each_example_on_the_slow_path():
    torch.manual_seed(0)
    gradients = ClippedGradients(nn.Sequential(OwnMatrix(), nn.Dropout(0.5), nn.Linear(6, CLASSES)), 1e9)
    rows, y = gradients.flat.flatten().repeat(2, 1), torch.zeros(2, 16, dtype=torch.long)
    result = gradients.clipped_sum(rows, torch.ones(2, 16, 6), y)
    assert not gradients.fast
    assert not torch.equal(result[0], result[1])
    assert (result[:, 36:42] != 0).all()  # a mask that 16 examples share leaves zeros


def test_functional_dropout_takes_the_fast_path():
    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(nn.functional.dropout(x, training=self.training))

    gradients = ClippedGradients(Drops(), 1.0)
    state = torch.get_rng_state()
    gradients.clipped_sum(gradients.flat.flatten()[None], torch.ones(1, 2, 6), torch.zeros(1, 2).long())
    assert gradients.fast
    # One number, the base of all streams, and no more: checks and masks leave the generator alone.
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    torch.randint(2**62, ())
    assert torch.equal(torch.get_rng_state(), after)


def test_bad_arguments_say_what_was_expected():
    gradients = ClippedGradients(nn.Linear(6, CLASSES), 1.0)
    rows, x, y = gradients.flat.flatten().repeat(2, 1), torch.ones(2, 3, 6), torch.zeros(2, 3).long()
    for clip in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="clip"):
            ClippedGradients(nn.Linear(2, 2), clip)
    with pytest.raises(ValueError, match="cross-entropy"):
        ClippedGradients(nn.Linear(2, 2), 1.0, "hinge")
    with pytest.raises(ValueError, match="rows"):
        gradients.clipped_sum(rows[:, 1:], x, y)
    with pytest.raises(ValueError, match="inputs"):
        gradients.clipped_sum(rows, x[:1], y)
    with pytest.raises(ValueError, match="targets"):
        gradients.clipped_sum(rows, x, y[:, 1:])
    with pytest.raises(ValueError, match="weights"):
        gradients.clipped_sum(rows, x, y, torch.ones(2, 4))
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="weights >= 0"):
            gradients.clipped_sum(rows, x, y, torch.full((2, 3), bad))
    with pytest.raises(ValueError, match="out"):
        gradients.clipped_sum(rows, x, y, out=torch.zeros(2, 3))
    with pytest.raises(ValueError, match="microbatch"):
        gradients.clipped_sum(rows, x, y, microbatch=0)
    with pytest.raises(ValueError, match="one loss per example"):
        ClippedGradients(nn.Linear(6, CLASSES), 1.0, nn.CrossEntropyLoss()).clipped_sum(rows, x, y)
    with pytest.raises(ValueError, match=r"6 numbers in the last axis, got .*\(3, 5\)"):
        gradients.clipped_sum(rows, torch.ones(2, 3, 5), y)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_a_gpu_agrees_with_the_cpu(name, dtype, error):
    """In float32, convolutions use topdp's own kernels."""
    flat, rows, x, y, weights = problem(name, dtype)
    clip = middle_norm(flat, rows, x, y)
    gradients = ClippedGradients(flat, clip)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        result = gradients.clipped_sum(*(t.cuda() for t in (rows, x, y, weights))).cpu()
        outputs = gradients.outputs(rows.cuda(), x[0].cuda()).cpu()
    assert gradients.fast
    assert relative(result, by_hand(flat, rows, x, y, weights, clip)) < error
    by_torch = torch.stack([flat.load(row).eval()(x[0]) for row in rows])
    assert torch.allclose(outputs, by_torch, rtol=error, atol=error)


def test_no_examples_add_nothing():
    gradients = ClippedGradients(nn.Linear(6, CLASSES), 1.0)
    rows = gradients.flat.flatten().repeat(2, 1)
    assert (gradients.clipped_sum(rows, torch.ones(2, 0, 6), torch.zeros(2, 0).long()) == 0).all()


CONTRIBUTORS = {
    name: ClippedGradients(problem(name, torch.float64)[0], 1.0)
    for name in ("mlp", "cnn", "tokens", "wide tokens", "wide convolution")
}


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(CONTRIBUTORS)),
    seed=st.integers(0, 2**32 - 1),
    size=st.floats(1e-3, 1e4),
    weight=st.floats(0, 10),
)
def test_no_example_moves_the_sum_by_more_than_clip_times_weight(name, seed, size, weight):
    gradients = CONTRIBUTORS[name]
    generator = torch.Generator().manual_seed(seed)
    rows = size ** torch.rand(2, 1, generator=generator) * torch.randn(
        2, gradients.flat.dimension, generator=generator
    )
    rows = rows.double()
    shape = MODELS[name][1]
    if shape == "tokens":
        x = torch.randint(9, (2, 3, 7), generator=generator)
    else:
        x = size * torch.randn(2, 3, *shape, generator=generator).double()
    y = torch.randint(CLASSES, (2, 3), generator=generator)
    weights = torch.rand(2, 3, generator=generator).double()
    weights[1, 2] = 0
    without = gradients.clipped_sum(rows, x, y, weights)
    weights[1, 2] = weight
    moved = gradients.clipped_sum(rows, x, y, weights) - without
    assert (moved[0] == 0).all()
    assert float(moved[1].norm()) <= weight * (1 + 1e-9) + 1e-12


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:.*slow path")
@pytest.mark.parametrize("microbatch", [None, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_fresh_sum_does_not_read_the_old_content(name, microbatch):
    flat, rows, x, y, weights = problem(name, torch.float64)
    gradients = ClippedGradients(flat, clip=0.5)
    out = torch.full_like(rows, torch.nan)
    gradients.clipped_sum(rows, x, y, weights, out=out, microbatch=microbatch, fresh=True)
    expected = gradients.clipped_sum(rows, x, y, weights, out=torch.zeros_like(rows), microbatch=microbatch)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
