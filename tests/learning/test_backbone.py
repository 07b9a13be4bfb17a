"""Models with frozen layers: splits, runs, adapters; computing these layers once changes no result."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import topdp
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.learning.models import FlatModel
from topdp.learning.pretrained_models import LoraLinear, lora, merged, split_backbone


def body() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
    layers(torch.randn(64, 1, 5, 5) * 2 + 1)  # statistics that are not those of a new layer
    return layers.eval().requires_grad_(False)


def whole() -> nn.Sequential:
    return nn.Sequential(body(), nn.Sequential(nn.Linear(27, 6), nn.Tanh()), nn.Linear(6, 2))


def test_a_sequential_model_is_split_before_its_first_trained_layer():
    model = whole()
    parts = split_backbone(model)
    assert parts is not None
    frozen, trained = parts
    assert [type(layer).__name__ for layer in frozen] == ["Conv2d", "BatchNorm2d", "ReLU", "Flatten"]
    x = torch.randn(4, 1, 5, 5)
    assert torch.equal(trained(frozen(x)), model(x))
    assert torch.equal(FlatModel(trained).flatten(), FlatModel(model).flatten())


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return nn.functional.dropout(self.linear(x), training=self.training)


@pytest.mark.parametrize(
    ("model", "length"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), None),  # nothing to compute once
        (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), None),
        (nn.Linear(4, 2), None),
        (nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Dropout(), nn.Linear(4, 2)), 1),
        (nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Dropout().eval(), nn.Linear(4, 2)), 2),
        (nn.Sequential(Noisy().requires_grad_(False), nn.Linear(4, 2)), None),
        (nn.Sequential(Noisy().requires_grad_(False).eval(), nn.Linear(4, 2)), 1),
    ],
)
def test_random_or_trained_layers_are_not_split_off(model, length):
    parts = split_backbone(model)
    assert (parts is None) if length is None else (parts is not None and len(parts[0]) == length)


def records(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(5, 40, 1, 5, 5, generator=generator)
    return x, (x.mean((2, 3, 4)) > 0).long()


def run(model: nn.Module, **settings):
    x, y = records()
    shards = topdp.Shards.from_arrays(list(zip(x[:4], y[:4], strict=True)), test=(x[4], y[4]))
    given = {
        "noise_seed": 0,
        "sigma": 0.05,
        "rounds": 6,
        "clip": 1.0,
        "learning_rate": 0.3,
        "method": "plain",
    } | settings
    return topdp.train(model, shards, topdp.topology.ring(4), **given)


def test_a_run_with_a_backbone_ends_like_a_run_without_the_split(monkeypatch):
    cached = run(whole())
    monkeypatch.setattr("topdp.runs.assembly.split_backbone", lambda module: None)
    plain = run(whole())
    torch.testing.assert_close(cached.estimates, plain.estimates, rtol=1e-4, atol=1e-5)
    x = torch.randn(3, 1, 5, 5)
    torch.testing.assert_close(cached.model(1)(x), plain.model(1)(x), rtol=1e-4, atol=1e-5)


def test_files_name_the_parameters_of_the_whole_model(tmp_path):
    from safetensors import safe_open

    run(whole(), out=tmp_path / "run", evaluate_every=2)
    for name in ("model", "best"):
        with safe_open(tmp_path / "run" / f"{name}.safetensors", "pt") as file:
            notes = str(file.metadata())
        assert "1.0.weight" in notes and "2.bias" in notes


def test_the_frozen_part_runs_once_for_each_record(monkeypatch):
    seen = []
    convolve = nn.Conv2d.forward

    def counted(self, x):
        seen.append(len(x))
        return convolve(self, x)

    monkeypatch.setattr(nn.Conv2d, "forward", counted)
    run(whole(), rounds=4)
    few = len(seen)
    seen.clear()
    run(whole(), rounds=40)
    assert len(seen) == few


def test_adapters_start_as_the_model_and_merge_into_it():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    adapted = lora(model, rank=2, scale=0.5)
    x = torch.randn(5, 6)
    assert torch.equal(adapted(x), model(x))
    with torch.no_grad():
        for layer in adapted.modules():
            if isinstance(layer, LoraLinear):
                layer.up.weight.normal_()
    assert not torch.allclose(adapted(x), model(x))
    folded = merged(adapted)
    assert [type(layer) for layer in folded] == [type(layer) for layer in model]
    torch.testing.assert_close(folded(x), adapted(x))
    assert torch.equal(model[0].weight, adapted[0].base.weight)


def test_adapters_take_the_fast_path_and_equal_the_slow_one():
    torch.manual_seed(1)
    model = lora(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)).double(), 2, train=["2"])
    flat = FlatModel(model)
    rows = torch.randn(3, flat.dimension, dtype=torch.float64)
    x, y = torch.randn(3, 5, 6, dtype=torch.float64), torch.randint(2, (3, 5))
    gradients = ClippedGradients(flat, 0.5)
    found = gradients.clipped_sum(rows, x, y)
    assert gradients.fast
    _, parts = gradients._plain.contributions(rows, x, y)
    expected = torch.zeros_like(rows)
    norms = torch.stack([part.squared_norms() for _, part in parts]).sum(0).sqrt()
    for slot, part in parts:
        part.add_to(expected[:, slot.start : slot.stop], 0.5 / norms.clamp_min(0.5))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_attention_keeps_its_own_layers_and_its_block_gets_adapters():
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    adapted = lora(block, rank=2)
    kinds = {path: type(layer).__name__ for path, layer in adapted.named_modules()}
    assert kinds["linear1"] == kinds["linear2"] == "LoraLinear"
    assert kinds["self_attn.out_proj"] != "LoraLinear"
    x = torch.randn(2, 3, 8)
    torch.testing.assert_close(adapted.eval()(x), block.eval()(x))
    with torch.no_grad():
        torch.testing.assert_close(adapted(x), block(x))


def test_only_adapters_are_trained_and_sent():
    model = lora(nn.Sequential(nn.Flatten(), nn.Linear(25, 40), nn.ReLU(), nn.Linear(40, 2)), 1)
    result = run(model)
    assert result.estimates.shape[1] == 25 + 40 + 40 + 2
    assert torch.equal(result.model(0)[1].base.weight, model[1].base.weight)


@pytest.mark.parametrize(
    ("model", "settings", "words"),
    [
        (nn.Linear(2, 2), {"rank": 0}, "rank of at least 1"),
        (nn.Linear(2, 2), {"train": ["head"]}, "head"),
        (nn.Conv1d(1, 1, 1), {}, "linear layers for adapters"),
    ],
)
def test_unsuitable_requests_for_adapters_are_refused(model, settings, words):
    with pytest.raises(InputError, match=words):
        lora(model, **settings)


def test_a_sequential_model_with_its_own_forward_is_not_split():
    model = whole()
    model.forward = lambda x: nn.Sequential.forward(model, -x)
    assert split_backbone(model) is None


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_a_record_on_which_frozen_layers_overflow_does_not_end_a_run(value):
    x, y = records()
    x[1, 7] = value
    layer = nn.Linear(25, 4).requires_grad_(False)
    nn.init.constant_(layer.weight, 10.0)
    model = nn.Sequential(nn.Flatten(), layer, nn.Linear(4, 2))
    shards = topdp.Shards.from_arrays(list(zip(x[:4], y[:4], strict=True)), test=(x[4], y[4]))
    result = topdp.train(
        model, shards, topdp.topology.ring(4), sigma=0.05, rounds=2, clip=1.0, method="plain"
    )
    assert torch.isfinite(result.estimates).all()


def test_a_token_that_a_frozen_table_lacks_does_not_end_a_run():
    tokens, y = torch.randint(9, (4, 20, 3)), torch.arange(20).remainder(2).expand(4, 20)
    tokens[1, 7, 0] = 9
    shards = topdp.Shards.from_arrays(
        list(zip(tokens[:3], y[:3], strict=True)), test=(tokens[3], y[3]), dtype=torch.int64
    )
    table = nn.Embedding(9, 4).requires_grad_(False)
    model = nn.Sequential(table, nn.Flatten(), nn.Linear(12, 2))
    result = topdp.train(model, shards, topdp.topology.ring(3), sigma=0.05, rounds=2, method="plain")
    assert torch.isfinite(result.estimates).all()


def test_a_backbone_in_float64_is_not_rounded(monkeypatch):
    def ends() -> torch.Tensor:
        x, y = records()
        agents = [(one.numpy().astype("float64"), two.numpy()) for one, two in zip(x, y, strict=True)]
        shards = topdp.Shards.from_arrays(agents[:4], test=agents[4], dtype=torch.float64)
        settings = {"noise_seed": 0, "sigma": 0.05, "rounds": 2, "method": "plain"}
        return topdp.train(whole().double(), shards, topdp.topology.ring(4), **settings).estimates

    cached = ends()
    monkeypatch.setattr("topdp.runs.assembly.split_backbone", lambda module: None)
    torch.testing.assert_close(cached, ends(), rtol=1e-12, atol=1e-12)
