"""The GPU kernels, executed by Triton's interpreter, which checks their arithmetic on any machine.

On a machine with a GPU, the tests of gradients run the compiled kernels.
"""

import os

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from topdp.learning.gradients import ClippedGradients, clipping_rules, convolutions, ghost_norms, safe_norms
from topdp.learning.gradients.ghost_norms import ConvolutionGeometry
from topdp.learning.models import FlatModel

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("a GPU runs them itself", allow_module_level=True)

from topdp.learning.gradients import clipping_cuda, window_layers_cuda

AGENTS, EXAMPLES = 2, 3
overflows = pytest.mark.filterwarnings("ignore:(overflow|invalid):RuntimeWarning")  # of the interpreter
# channels, outputs, height, width, geometry
LAYERS = {
    "the paper's first": (3, 6, 12, 11, ConvolutionGeometry((5, 5), (1, 1), (1, 1), 1)),
    "many outputs": (5, 20, 9, 9, ConvolutionGeometry((1, 3), (2, 2), (1, 2), 1)),
    "strides and holes": (2, 3, 13, 16, ConvolutionGeometry((3, 2), (2, 3), (2, 1), 1)),
    "many channels": (9, 20, 7, 8, ConvolutionGeometry((3, 2), (2, 1), (1, 2), 1)),
    "more positions than one block": (6, 4, 16, 16, ConvolutionGeometry((2, 2), (1, 1), (1, 1), 1)),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_convolutions_and_their_gradients_equal_those_of_torch(layer, with_bias):
    channels, outputs, height, width, geometry = LAYERS[layer]
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    # Weights lie in rows with other parameters before and after them.
    size = outputs * channels * geometry.kernel[0] * geometry.kernel[1]
    weight = normal(AGENTS, size + 7)[:, 4 : 4 + size].view(AGENTS, outputs, channels, *geometry.kernel)
    bias = normal(AGENTS, outputs + 3)[:, 1 : 1 + outputs] if with_bias else None
    x = normal(AGENTS, EXAMPLES, channels, height, width).requires_grad_()

    out = window_layers_cuda.convolve(x, weight, bias, geometry)
    own = [None, None] if bias is None else bias
    expected = [
        functional.conv2d(x[i], weight[i], own[i], geometry.stride, 0, geometry.dilation)
        for i in range(AGENTS)
    ]
    torch.testing.assert_close(out, torch.cat(expected), rtol=1e-4, atol=1e-4)

    delta = normal(*out.shape)
    torch.testing.assert_close(
        *(torch.autograd.grad(y, x, delta)[0] for y in (out, torch.cat(expected))), rtol=1e-4, atol=1e-4
    )

    unfolded = delta.view(AGENTS, EXAMPLES, *delta.shape[1:])
    found = window_layers_cuda.per_example_gradients(x.detach(), unfolded, geometry)
    for i in range(AGENTS):
        for j in range(EXAMPLES):
            kernel = weight[i].clone().requires_grad_()
            y = functional.conv2d(
                x[i, j : j + 1].detach(), kernel, None, geometry.stride, 0, geometry.dilation
            )
            (by_torch,) = torch.autograd.grad(y, kernel, unfolded[i, j : j + 1])
            torch.testing.assert_close(found[i, j], by_torch.flatten(), rtol=1e-4, atol=1e-4)


def test_a_batch_for_all_agents_is_not_copied():
    channels, outputs, height, width, geometry = LAYERS["the paper's first"]
    x = torch.randn(EXAMPLES, channels, height, width)
    weight = torch.randn(AGENTS, outputs, channels, *geometry.kernel)
    out = window_layers_cuda.convolve(x.expand(AGENTS, *x.shape), weight, None, geometry)
    torch.testing.assert_close(
        out, torch.cat([functional.conv2d(x, own) for own in weight]), rtol=1e-4, atol=1e-4
    )


def between_nan(x):
    """The same values, with NaN before and after them in memory."""
    flat = torch.full((x.numel() + 4096,), torch.nan)
    flat[2048:-2048] = x.flatten()
    return flat[2048:-2048].view(x.shape)


def among_nan(x):
    """Every other element of a tensor whose other elements are NaN."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan)
    wide[..., ::2] = x
    return wide[..., ::2]


@pytest.mark.slow
@pytest.mark.parametrize("lay", [between_nan, among_nan])
@pytest.mark.parametrize(("channels", "outputs"), [(17, 33), (9, 9)])
def test_convolutions_of_several_blocks_read_only_their_own_blocks(channels, outputs, lay):
    generator = torch.Generator().manual_seed(0)
    geometry = ConvolutionGeometry((3, 3), (1, 1), (1, 1), 1)
    x = lay(torch.randn(1, 2, channels, 15, 13, generator=generator)).requires_grad_()
    weight = torch.randn(1, outputs, channels, 3, 3, generator=generator)
    out, expected = window_layers_cuda.convolve(x, weight, None, geometry), functional.conv2d(x[0], weight[0])
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    delta = lay(torch.randn(expected.shape, generator=generator))
    torch.testing.assert_close(
        *(torch.autograd.grad(y, x, delta)[0] for y in (out, expected)), rtol=1e-4, atol=1e-4
    )
    last = delta if lay is between_nan else delta.contiguous(memory_format=torch.channels_last)
    found = window_layers_cuda.per_example_gradients(x.detach(), last[None], geometry)
    for j in range(2):
        by_torch = conv2d_weight(x[0, j : j + 1].detach(), weight[0].shape, delta[j : j + 1])
        torch.testing.assert_close(found[0, j], by_torch.flatten(), rtol=1e-3, atol=1e-3)


def test_elements_too_far_apart_in_memory_are_copied(monkeypatch):
    """For example those of a batch whose channels come first."""
    channels, outputs, height, width, geometry = LAYERS["the paper's first"]
    x = torch.randn(channels, AGENTS, EXAMPLES, height, width).permute(1, 2, 0, 3, 4)
    weight = torch.randn(AGENTS, outputs, channels, *geometry.kernel)
    convolved = window_layers_cuda.convolve(x, weight, None, geometry)
    delta = torch.randn(outputs, AGENTS, EXAMPLES, *convolved.shape[2:]).permute(1, 2, 0, 3, 4)
    gradients = window_layers_cuda.per_example_gradients(x, delta, geometry)

    largest = max(x[0, 0].numel(), delta[0, 0].numel())
    monkeypatch.setattr(window_layers_cuda, "MAX_EXAMPLE_SPAN", largest + 1)
    near = x.contiguous()
    assert window_layers_cuda._with_small_span(near) is near
    copied = []
    real = torch.Tensor.contiguous
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda self: copied.append(self.shape) or real(self))
    assert torch.equal(window_layers_cuda.convolve(x, weight, None, geometry), convolved)
    assert torch.equal(window_layers_cuda.per_example_gradients(x, delta, geometry), gradients)
    assert copied == [x.shape, x.shape, delta.flatten(3).shape]
    monkeypatch.setattr(window_layers_cuda, "MAX_EXAMPLE_SPAN", x[0, 0].numel())
    with pytest.raises(ValueError, match="one example"):
        window_layers_cuda.convolve(x, weight, None, geometry)


@pytest.mark.parametrize("lay", [between_nan, among_nan])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 2), (1, 4), (8, 8)])
def test_max_pooling_and_its_gradient_equal_those_of_torch(kernel, lay):
    """Also for equal values, infinities and NaN, and where no window covers the edges."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-4, 1, (3, 20, 17, 19), generator=generator).float()
    x[0, 0, 0, :2] = torch.nan
    x[1] = -torch.inf
    x = lay(x).requires_grad_()
    out, expected = window_layers_cuda.max_pool(x, kernel), functional.max_pool2d(x, kernel)
    assert torch.equal(out.nan_to_num(nan=5.0), expected.nan_to_num(nan=5.0))
    assert out.isnan().any()
    delta = lay(torch.randn(out.shape, generator=generator))
    assert torch.equal(*(torch.autograd.grad(y, x, delta)[0] for y in (out, expected)))


def test_second_derivatives_are_refused():
    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(
        (window_layers_cuda.max_pool(x, (2, 2)) ** 2).sum(), x, create_graph=True
    )
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


class Own(nn.Module):
    """A user's code around the layers: in it each example is a batch of one."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return self.layers(x * 1)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [lambda layers: layers, Own])
def test_a_model_gives_the_same_result_with_and_without_kernels(monkeypatch, wrap):
    """With convolutions of few and many channels, and windows that are not square."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d((2, 3)), nn.Conv2d(4, 10, 2), nn.MaxPool2d((3, 2)),
        nn.Conv2d(10, 3, 1), nn.Flatten(), nn.Linear(3, 3),
    )  # fmt: skip
    model = wrap(layers)
    rows = FlatModel(model).flatten() + 0.1 * torch.randn(2, FlatModel(model).dimension)
    inputs, targets = torch.randn(2, 3, 2, 10, 11), torch.randint(3, (2, 3))
    without = ClippedGradients(model, 0.5).clipped_sum(rows, inputs, targets)
    asked = []
    for place in (convolutions, ghost_norms):
        monkeypatch.setattr(
            place, "takes_cuda_kernels", lambda x: asked.append(x.shape) or x.dtype == torch.float32
        )
    gradients = ClippedGradients(model, 0.5)
    torch.testing.assert_close(gradients.clipped_sum(rows, inputs, targets), without, rtol=1e-4, atol=1e-5)
    assert gradients.fast and {len(shape) for shape in asked} == {4, 5}  # of pools, of convolutions


@overflows
@pytest.mark.parametrize("size", [1, 10, 100, 1500])
@pytest.mark.parametrize("lay", [between_nan, among_nan])
def test_squared_norms_equal_those_of_torch(size, lay):
    x = lay(torch.randn(3, 2, size))
    found = clipping_cuda.squared_norms(x, 0.5)
    torch.testing.assert_close(found, x.double().square().sum(2).add(0.5).float(), rtol=1e-6, atol=0)
    x = x.clone()
    for place, value in enumerate((torch.nan, torch.inf, 3e38)):
        x[place, 1, 0] = value
    found = clipping_cuda.squared_norms(x.expand(3, 2, size), 0.0)
    assert found[:, 0].isfinite().all() and not found[:, 1].isfinite().any()


@overflows
def test_clip_factors_equal_those_of_torch():
    """Up to the last digit: torch multiplies by the inverse."""
    squares = torch.cat([torch.rand(300) * 4, torch.tensor([0.0, 4.0, 1e38, torch.inf, torch.nan, -1.0])])
    squares = squares.view(2, 153)
    norms = squares.sqrt()
    wrong = ~norms.isfinite()
    factor, longer, bad = clipping_cuda.flat_clip_factors(squares, 1.25)
    assert torch.equal(bad, wrong) and int(bad.sum()) == 3
    norms = norms.masked_fill(wrong, 0)
    assert torch.equal(longer, norms > 1.25)
    torch.testing.assert_close(factor, 1.25 / norms.clamp_min(1.25), rtol=2e-7, atol=0)
    assert (factor[norms <= 1.25] == 1).all()
    assert (factor * norms <= 1.25 * (1 + 1e-6)).all()
    spread = torch.stack([squares, squares * 2], 2)[:, :, 0]  # not contiguous in memory
    assert torch.equal(clipping_cuda.flat_clip_factors(spread, 1.25)[0], factor)


@overflows
def test_a_pass_gives_the_same_result_with_and_without_kernels(monkeypatch):
    """Also for a record that overflows."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))
    gradients = ClippedGradients(model, 0.5)
    rows = gradients.flat.flatten().repeat(2, 1)
    x, y = torch.randn(2, 3, 12), torch.randint(0, 3, (2, 3))
    x[1, 1] = 3e38
    expected = gradients.clipped_sum(rows, x, y)
    asked = []
    for place in (clipping_rules, safe_norms):
        monkeypatch.setattr(place, "takes_cuda_kernels", lambda x: asked.append(x.shape) or True)
    torch.testing.assert_close(gradients.clipped_sum(rows, x, y), expected, rtol=1e-5, atol=1e-6)
    assert len(asked) == 7 and expected.isfinite().all()
