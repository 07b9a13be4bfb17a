"""The clipping rules equal a loop over examples, and no gradient is longer than the clip."""

from __future__ import annotations

import math

import pytest
import torch
from test_gradients import middle_norm, one_by_one, relative
from torch import nn

from builders import cyclic_pairs
from gradient_models import MODELS, problem
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.learning.gradients.clipping_rules import CLIPPING_KINDS, NORMALISATION_GAMMA
from topdp.learning.models import FlatModel


def by_hand(flat: FlatModel, gradient: torch.Tensor, kind: str, clip: float) -> torch.Tensor:
    """From the definitions, for the gradient [d] of one example."""
    if kind == "flat":
        return gradient / max(1.0, float(gradient.norm()) / clip)
    if kind == "normalised":
        return clip * gradient / (gradient.norm() + NORMALISATION_GAMMA)
    modules = [path for path, m in flat.module.named_modules() if any(True for _ in m.parameters(False))]
    trained = {slot.name for slot in flat.slots}
    layers = [p for p in modules if any(name.rpartition(".")[0] == p for name in trained)]
    result = torch.zeros_like(gradient)
    for path in layers:
        own = torch.zeros_like(gradient, dtype=torch.bool)
        for slot in flat.slots:
            own[slot.start : slot.stop] |= slot.name.rpartition(".")[0] == path
        part = gradient * own
        result += part / max(1.0, float(part.norm()) / (clip / math.sqrt(len(layers))))
    return result


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["per-layer", "normalised"])
@pytest.mark.parametrize("name", MODELS)
def test_equals_a_loop_over_examples(name, kind):
    flat, rows, x, y, weights = problem(name, torch.float64)
    clip = middle_norm(flat, rows, x, y)
    gradients = ClippedGradients(flat, clip, clipping=kind)
    found = gradients.clipped_sum(rows, x, y, weights)
    assert gradients.fast
    expected = torch.zeros_like(rows)
    for i, row in enumerate(rows):
        for gradient, weight in zip(one_by_one(flat, row, x[i], y[i]), weights[i], strict=True):
            expected[i] += weight * by_hand(flat, gradient, kind, clip)
    assert relative(found, expected) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), cyclic_pairs(MODELS, CLIPPING_KINDS, times=2))
def test_one_record_never_changes_the_sum_by_more_than_the_clip(name, kind):
    flat, rows, x, y, _ = problem(name, torch.float64)
    gradients = ClippedGradients(flat, 0.3, clipping=kind)
    alone = torch.zeros(x.shape[:2], dtype=torch.float64)
    alone[:, 0] = 1.0
    for size in (1.0, 1e-8, 1e6, 1e150, math.nan, math.inf):
        if not x.is_floating_point() and size != 1.0:
            continue
        sums = gradients.clipped_sum(rows, x * size if x.is_floating_point() else x, y, alone)
        assert torch.isfinite(sums).all()
        assert (sums.norm(dim=1) <= 0.3 * (1 + 1e-12)).all()


@pytest.mark.filterwarnings("ignore:Per-example gradients of this model take the slow path")
def test_the_slow_path_clips_like_the_fast_path():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, 12).view(3, 4))
            self.last = nn.Linear(4, 3)

        def forward(self, x):
            return self.last(torch.tanh(torch.einsum("bi,ij->bj", x, self.weight)))

    flat = FlatModel(Own().double())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (2, 5), generator=generator)
    rows = flat.flatten().repeat(2, 1)
    for kind in CLIPPING_KINDS:
        found = ClippedGradients(flat, 0.2, clipping=kind).clipped_sum(rows, x, y)
        for i, row in enumerate(rows):
            each = [by_hand(flat, g, kind, 0.2) for g in one_by_one(flat, row, x[i], y[i])]
            assert relative(found[i], torch.stack(each).sum(0)) < 1e-12


def test_statistics_count_clipped_examples():
    flat, rows, x, y, _ = problem("mlp", torch.float64)
    for kind in CLIPPING_KINDS:
        for clip, share in ((1e-6, 1.0), (1e6, 0.0)):
            gradients = ClippedGradients(flat, clip, clipping=kind)
            _, found = gradients.clipped_sum_and_statistics(rows, x, y)
            assert found.clipped.tolist() == [share] * len(rows)


def test_an_unknown_clipping_kind_is_refused():
    with pytest.raises(InputError, match="flat, per-layer, normalised"):
        ClippedGradients(nn.Linear(2, 2), 1.0, clipping="round")
