"""Isolated execution of user code: many examples at once, none of which can influence another.

`vmap` maps the code over batches of one. Inside, each example is a batch of one, so every torch function that
the code calls acts on one example, for all values. `vmap` itself refuses code that reads values, writes into
tensors from outside, or accesses storage. This module refuses the remaining ways in which code could reach
several examples. `kept_state` covers what code keeps between calls.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.func import vmap
from torch.overrides import TorchFunctionMode

_functorch: Any = torch._C._functorch  # the stubs lack the functions for missing rules


@final
class BatchAccessError(Exception):
    """An error for user code that could access several examples at once; the message says how."""


def isolated_vmap(function: Callable[..., Any], in_dims: tuple[int | None, ...]) -> Callable[..., Any]:
    """Return what `vmap` returns, with separate random numbers for every example.

    If torch has no batching rule for an operator, torch processes one example after the other and warns. This
    warning is not meant for users and is suppressed; `path_check` gives a clearer remark instead.
    """
    mapped: Callable[..., Any] = vmap(function, in_dims, randomness="different")

    def quiet(*arguments: Any) -> Any:
        _functorch._set_vmap_fallback_warning_enabled(False)
        try:
            return mapped(*arguments)
        finally:
            _functorch._set_vmap_fallback_warning_enabled(True)

    return quiet


def operator_without_batch_rule(function: Callable[..., object], *arguments: Any) -> str | None:
    """Return an operator in `function` for which torch has no batching rule; None if there is none."""
    before = _functorch._is_vmap_fallback_enabled()
    _functorch._set_vmap_fallback_enabled(False)
    try:
        function(*arguments)
    except Exception as error:  # torch raises many types of errors here
        match = re.search(r"(\S+) hit the vmap fallback", str(error))
        return match[1] if match else None
    finally:
        _functorch._set_vmap_fallback_enabled(before)
    return None


@contextmanager
def forbid_batch_access() -> Iterator[None]:
    """Forbid user code inside `isolated_vmap` to reach the tensor of all examples through its own example.

    If the code tries, BatchAccessError or torch's own error is raised.

    **Guarantees.** Together with `vmap`, code inside computes a function of one example, as far as it uses
    the public functions of torch: it cannot print tensors (the text shows all examples), call operators or
    autograd functions with their own batching rule, use a mode below `vmap`, or attach hooks to tensors that
    are saved for the backward pass. Hooks on gradients cannot be attached either, because a tensor inside
    `isolated_vmap` does not know its own graph.
    """
    with (
        torch.autograd.graph.disable_saved_tensors_hooks("hooks on saved tensors see all examples"),
        _BatchAccessGuard(),
    ):
        yield


@final
class _BatchAccessGuard(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self._modes = torch._C._len_torch_dispatch_stack()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__repr__:
            raise BatchAccessError("the model prints a tensor, and the text shows all examples")
        if torch._C._len_torch_dispatch_stack() > self._modes:
            raise BatchAccessError("the model uses a TorchDispatchMode, which sees all examples")
        if _operator_name(func) in REJECTION_SAMPLERS:
            raise BatchAccessError(f"{func} draws more random numbers for some examples than for others")
        if isinstance(func, OpOverload | OpOverloadPacket) and _namespace(func) not in ("aten", "prims"):
            raise BatchAccessError(f"the operator {func} may have its own batching rule")
        if getattr(func, "__name__", "") == "custom_function_call" and _has_custom_rule(args[0]):
            raise BatchAccessError(f"the autograd function {args[0].__name__} has its own batching rule")
        return func(*args, **(kwargs or {}))


# Samplers that draw until a number is accepted, from one generator for all examples.
REJECTION_SAMPLERS = ("poisson", "binomial", "_standard_gamma", "_sample_dirichlet")


def _operator_name(func: Any) -> str:
    if isinstance(func, OpOverload | OpOverloadPacket):
        packet = func._overloadpacket if isinstance(func, OpOverload) else func
        return str(packet._qualified_op_name).partition("::")[2]
    return str(getattr(func, "__name__", ""))


def _namespace(operator: OpOverload | OpOverloadPacket) -> str:
    packet = operator._overloadpacket if isinstance(operator, OpOverload) else operator
    return str(packet._qualified_op_name).partition("::")[0]


def _has_custom_rule(function: Any) -> bool:
    own = function.vmap is not torch.autograd.Function.vmap
    return own and function.__module__.partition(".")[0] != "topdp"
