"""Models that try to mix examples: each is rejected, or no record moves the sum by more than the clip."""

from __future__ import annotations

import itertools
import re
import warnings
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients

IN, OUT, AGENTS, RECORDS = 6, 4, 2, 30
SIZES = (1e-3, 1.0, 1e3, 1e10, -1.0, -1e3, -1e10)

SEEN: list[Tensor] = []
LARGEST = 0.0


class Cheat(nn.Module):
    """A linear layer in which `mix` meets the batch first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(IN, OUT)
        self.setup()

    def setup(self) -> None: ...

    def mix(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.mix(x))


class LargestOfTheBatch(Cheat):
    def mix(self, x):
        return x / x.abs().max().clamp(min=1)


class LargestInside(Cheat):
    def setup(self):
        self.first = nn.Linear(IN, IN)

    def mix(self, x):
        h = self.first(x)
        return h / h.abs().max().clamp(min=10)


class MeanOfNegatives(Cheat):
    def mix(self, x):
        return x + 1e3 * x.clamp(max=0).mean(0)


class RunningMean(Cheat):
    def setup(self):
        self.mean = torch.zeros(IN)

    def mix(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


class RunningNumber(Cheat):
    def setup(self):
        self.largest = 1.0

    def mix(self, x):
        self.largest = max(self.largest, float(x.detach().abs().max()))
        return x / self.largest


class Sorted(Cheat):
    def mix(self, x):
        return functional.relu(x - 1).sort(0).values + x


class TopThree(Cheat):
    def mix(self, x):
        k = min(3, x.shape[0])
        return x + functional.relu(x - 1).topk(k, 0).values.sum(0)


class SummedUp(Cheat):
    def mix(self, x):
        return x + functional.relu(x - 1).cumsum(0)


class Flipped(Cheat):
    def mix(self, x):
        return x + functional.relu(x - 1).flip(0)


class Rolled(Cheat):
    def mix(self, x):
        return x * (1 + functional.relu(x.roll(1, 0).abs() - 1))


class Expanded(Cheat):
    def mix(self, x):
        every = x.unsqueeze(0).expand(x.shape[0], *x.shape)
        return x + functional.relu(every.abs() - 1).sum(1)


class Merged(Cheat):
    def mix(self, x):
        return x / functional.relu(x.reshape(-1).norm() - 100).add(1)


class Attends(Cheat):
    def mix(self, x):
        return torch.softmax(x @ x.mT, 1) @ x


class Gathered(Cheat):
    def mix(self, x):
        return x[x.abs().amax(1).argsort()] + x.index_select(0, x.argmax(0)[:1] % x.shape[0])


class OldFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x / x.abs().max().clamp(min=1)

    @staticmethod
    def backward(ctx, delta):
        return delta


class OwnFunction(Cheat):
    def mix(self, x):
        return OldFunction.apply(x)


class FunctionWithARule(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output): ...

    @staticmethod
    def backward(ctx, delta):
        return delta

    @staticmethod
    def vmap(info, in_dims, x):
        return x / x.abs().max().clamp(min=1), in_dims[0]


class OwnRule(Cheat):
    def mix(self, x):
        return FunctionWithARule.apply(x)


class FunctionThatMixesBackwards(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output): ...

    @staticmethod
    def backward(ctx, delta):
        return delta.sum(0, keepdim=True).expand_as(delta)


class MixesBackwards(Cheat):
    def setup(self):
        self.first = nn.Linear(IN, IN)

    def mix(self, x):
        return FunctionThatMixesBackwards.apply(self.first(x))


class HooksItsGradient(Cheat):
    def setup(self):
        self.first = nn.Linear(IN, IN)

    def mix(self, x):
        h = self.first(x)
        if h.requires_grad:
            h.register_hook(lambda delta: delta / delta.norm() * 10)
        return h


class HooksWhatIsSaved(Cheat):
    def setup(self):
        self.first = nn.Linear(IN, IN)

    def mix(self, x):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t + t.sum(0)):
            return self.first(x) ** 2


class KeepsTheLastBatch(Cheat):
    def setup(self):
        self.last = None

    def mix(self, x):
        h = x if self.last is None else x + self.last.mean(0)
        self.last = x.detach()
        return h


class KeepsAGlobalList(Cheat):
    def mix(self, x):
        SEEN.append(x.detach())
        return x + SEEN[0].sum(0)


class KeepsAGlobalNumber(Cheat):
    def mix(self, x):
        global LARGEST
        LARGEST = max(LARGEST, float(x.detach().abs().max()))
        return x / max(1.0, LARGEST)


class KeepsAClassAttribute(Cheat):
    known: ClassVar[dict[str, Tensor]] = {}

    def mix(self, x):
        last = self.known.get("last")
        type(self).known["last"] = x.detach()
        return x if last is None else x + last.sum(0)


class WritesItsBuffer(Cheat):
    def setup(self):
        self.register_buffer("seen", torch.zeros(IN))

    def mix(self, x):
        self.seen.data += x.detach().sum(0)
        return x - self.seen


class WritesAFrozenParameter(Cheat):
    def setup(self):
        self.seen = nn.Parameter(torch.zeros(IN), requires_grad=False)

    def mix(self, x):
        self.seen.add_(x.detach().sum(0))
        return x - self.seen


class WritesItsWeight(Cheat):
    def mix(self, x):
        if float(x.sum()) > 0:
            self.layer.weight.data.mul_(1.5)
        return x


class Counts(Cheat):
    def setup(self):
        self.calls = itertools.count(1)

    def mix(self, x):
        return x * next(self.calls)


class CountsByHand(Cheat):
    def setup(self):
        self.calls = 0

    def mix(self, x):
        self.calls += 1
        return x * self.calls


class ThroughData(Cheat):
    def mix(self, x):
        return x / x.data.abs().max().clamp(min=1)


class ThroughNumpy(Cheat):
    def mix(self, x):
        largest = abs(x.detach().cpu().numpy()).max()
        return x / max(1.0, float(largest))


class ThroughText(Cheat):
    def mix(self, x):
        numbers = [float(n) for n in re.findall(r"-?\d+\.\d*(?:e[+-]\d+)?", repr(x.detach()))]
        return x / max(1.0, *map(abs, numbers))


class ThroughAList(Cheat):
    def mix(self, x):
        return x / max(1.0, max(abs(n) for row in x.tolist() for n in row))


class Branches(Cheat):
    def mix(self, x):
        return x - x.mean(0) if x.abs().max() > 1 else x


class SeesEverything(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        return found / found.abs().max().clamp(min=1) if func is torch.ops.aten.mul.Tensor else found


class UnderAMode(Cheat):
    def mix(self, x):
        with SeesEverything():
            return x * 1


class ReadsTheSizeOfTheBatch(Cheat):
    def mix(self, x):
        return x / x.shape[0] if x.shape[0] < RECORDS else x / x.abs().max().clamp(min=1)


@torch.library.custom_op("topdp_tests::scaled", mutates_args=())
def scaled(x: Tensor) -> Tensor:
    return x * 1


scaled.register_vmap(lambda info, in_dims, x: (x / x.abs().max().clamp(min=1), in_dims[0]))
scaled.register_autograd(lambda ctx, delta: delta)


class OwnOperator(Cheat):
    def mix(self, x):
        return scaled(x)


def soft_over_the_batch() -> nn.Module:
    return nn.Sequential(nn.Linear(IN, OUT), nn.Softmax(0))


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(IN, IN), nn.ReLU(), nn.Linear(IN, OUT))
    model[1].register_forward_hook(lambda layer, args, h: h / h.abs().max().clamp(min=10))
    return model


CHEATS = {cheat.__name__: cheat for cheat in Cheat.__subclasses__()} | {
    "soft over the batch": soft_over_the_batch,
    "hooked": hooked,
}
REMEMBERS = {
    "RunningMean", "RunningNumber", "KeepsTheLastBatch", "KeepsAGlobalList", "KeepsAGlobalNumber",
    "KeepsAClassAttribute", "WritesItsBuffer", "WritesAFrozenParameter", "Counts", "CountsByHand",
}  # fmt: skip
FAST = {
    "LargestOfTheBatch", "LargestInside", "MeanOfNegatives", "Sorted", "SummedUp", "Flipped", "Rolled",
    "Expanded", "Merged", "Attends", "hooked", "MixesBackwards",
}  # fmt: skip


def biggest_move(gradients: ClippedGradients, size: float, device: str = "cpu") -> float:
    """The largest change of an agent's sum if one record is replaced; other sums must not change."""
    generator = torch.Generator().manual_seed(3)
    rows = gradients.flat.flatten().repeat(AGENTS, 1)
    y = torch.randint(OUT, (AGENTS, RECORDS), generator=generator)
    moved = 0.0
    for others in (1.0, size):
        x = others * torch.randn(AGENTS, RECORDS, IN, generator=generator)
        before = gradients.clipped_sum(rows.to(device), x.to(device), y.to(device))
        x[0, 7] = size * torch.rand(IN, generator=generator)
        y[0, 7] = (y[0, 7] + 1) % OUT
        after = gradients.clipped_sum(rows.to(device), x.to(device), y.to(device))
        assert torch.equal(before[1], after[1])
        moved = max(moved, float((after[0] - before[0]).norm()))
    return moved


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CHEATS)
def test_a_model_that_mixes_examples_is_refused_or_isolated(name):
    torch.manual_seed(0)
    SEEN.clear()
    gradients = ClippedGradients(CHEATS[name](), 1.0)
    if name in REMEMBERS:
        with pytest.raises(InputError, match="keep nothing between calls"):
            biggest_move(gradients, 1.0)
        return
    if name == "WritesItsWeight":
        with pytest.raises(InputError, match="does not change its parameters"):
            biggest_move(gradients, 1.0)
        return
    for size in SIZES:
        assert biggest_move(gradients, size) <= 2 * (1 + 1e-5)
    assert gradients.fast or name not in FAST


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(FAST))
def test_models_that_mix_examples_are_isolated_on_a_gpu(name):
    torch.manual_seed(0)
    gradients = ClippedGradients(CHEATS[name](), 1.0)
    for size in SIZES:
        assert biggest_move(gradients, size, "cuda") <= 2 * (1 + 1e-5)
    assert gradients.fast


def entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, y, reduction="none")


LOSSES = {
    "largest of the batch": lambda outputs, y: entropy(outputs, y) / entropy(outputs, y).max().clamp(min=2),
    "mean of all": lambda outputs, y: entropy(outputs, y).mean(0) * torch.ones_like(outputs[:, 0]),
    "looks": lambda outputs, y: entropy(outputs, y) / max(1.0, float(outputs.abs().max())),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_mixes_examples_is_isolated(name):
    torch.manual_seed(0)
    gradients = ClippedGradients(nn.Linear(IN, OUT), 1.0, LOSSES[name])
    for size in SIZES:
        assert biggest_move(gradients, size) <= 2 * (1 + 1e-5)


def test_a_loss_that_keeps_state_is_refused():
    kept: list[float] = []

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        kept.append(float(outputs.detach().abs().max()))
        return functional.cross_entropy(outputs / max(kept), y, reduction="none")

    with pytest.raises(InputError, match=r"loss.*closure kept"):
        biggest_move(ClippedGradients(nn.Linear(IN, OUT), 1.0, loss), 1.0)


@pytest.mark.filterwarnings("ignore")
def test_a_global_hook_is_user_code():
    torch.manual_seed(0)
    gradients = ClippedGradients(nn.Sequential(nn.Linear(IN, IN), nn.ReLU(), nn.Linear(IN, OUT)), 1.0)
    biggest_move(gradients, 1.0)
    hook = nn.modules.module.register_module_forward_hook(
        lambda layer, args, h: h / h.abs().max().clamp(min=10) if isinstance(layer, nn.ReLU) else h
    )
    try:
        for size in SIZES:
            assert biggest_move(gradients, size) <= 2 * (1 + 1e-5)
    finally:
        hook.remove()


def test_state_changed_only_by_unusual_records_is_found_before_data_are_read():
    class Rarely(Cheat):
        def setup(self):
            self.huge = 0

        def mix(self, x):
            if float(x.abs().max()) > 1e8:
                self.huge += 1
            return x

    with pytest.raises(InputError, match=r"model\.huge"):
        biggest_move(ClippedGradients(Rarely(), 1.0), 1e-3)


def test_state_that_changes_later_is_refused_at_that_time():
    class Later(Cheat):
        def mix(self, x):
            if x.shape[-1] == IN and x.dtype == torch.float32 and float(x.sum()) == 77.0:
                SEEN.append(x)
            return x

    gradients = ClippedGradients(Later(), 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        biggest_move(gradients, 1.0)
    x = torch.zeros(AGENTS, RECORDS, IN)
    x[0, 3, 0] = 77.0
    rows, y = gradients.flat.flatten().repeat(AGENTS, 1), torch.zeros(AGENTS, RECORDS).long()
    with pytest.raises(InputError, match="global SEEN"):
        gradients.clipped_sum(rows, x, y)


def test_a_tensor_hidden_outside_the_model_is_found():
    hidden = SimpleNamespace(last=None)
    setattr(torch, "_hidden_by_a_test", hidden)  # noqa: B010

    class Hides(Cheat):
        def mix(self, x):
            torch._hidden_by_a_test.last = x * 1
            return x

    try:
        with pytest.raises(InputError, match="still refers to one of its tensors"):
            biggest_move(ClippedGradients(Hides(), 1.0), 1.0)
    finally:
        hidden.last = None
        del torch._hidden_by_a_test


class WritesItsInput(Cheat):
    def mix(self, x):
        return x.mul_(2)


def test_a_model_that_writes_into_its_records_is_rejected_before_it_writes():
    gradients = ClippedGradients(WritesItsInput(), 1.0)
    rows, x = gradients.flat.flatten()[None], torch.ones(1, 3, IN)
    with pytest.raises(InputError, match=r"x\.clone\(\)"):
        gradients.clipped_sum(rows, x, torch.zeros(1, 3).long())
    assert torch.equal(x, torch.ones(1, 3, IN))


class Quiet(Cheat):
    """Does only what is allowed: constants, helpers, containers, its own positions, writes to copies."""

    def setup(self):
        self.sizes = [1, 2, 3]
        self.table = nn.Embedding(3, IN)
        self.register_buffer("scale", torch.linspace(1, 2, IN))

    def mix(self, x):
        h = x.clone()
        h.mul_(2)
        h = h * self.scale + self.table(torch.arange(3)).mean(0) * len(self.sizes)
        return torch.vmap(lambda row: torch.tanh(row) - row.mean())(h)


def test_a_model_without_state_takes_the_fast_path():
    torch.manual_seed(0)
    gradients = ClippedGradients(Quiet(), 1.0)
    assert biggest_move(gradients, 1.0) <= 2 * (1 + 1e-5)
    assert gradients.fast
