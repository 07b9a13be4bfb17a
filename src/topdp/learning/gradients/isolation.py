"""Isolated execution of user code: many examples at once, none of which can influence another.

`vmap` maps the code over batches of one. Inside, each example is a batch of one, so whatever torch function
the code calls acts on one example, for all values. `vmap` itself refuses code that reads values, writes into
tensors from outside, or accesses storage. This module refuses the remaining ways around it. What code keeps
between calls is covered by `kept_state`.
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
    """User code could see several examples at once; the message says how."""


def isolated_vmap(function: Callable[..., Any], in_dims: tuple[int | None, ...]) -> Callable[..., Any]:
    """Like `vmap`, with separate random numbers for every example.

    Where torch has no batching rule for an operator, it takes one example after the other and warns. That
    warning is not meant for users and is silenced; `path_check` gives ours.
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
    """Return an operator in `function` for which torch has no batching rule, or None."""
    before = _functorch._is_vmap_fallback_enabled()
    _functorch._set_vmap_fallback_enabled(False)
    try:
        function(*arguments)
    except Exception as error:  # of many types
        match = re.search(r"(\S+) hit the vmap fallback", str(error))
        return match[1] if match else None
    finally:
        _functorch._set_vmap_fallback_enabled(before)
    return None


@contextmanager
def forbid_batch_access() -> Iterator[None]:
    """Forbid user code inside `isolated_vmap` to reach the tensor of all examples behind an example.

    **Guarantees.** Together with `vmap`, code inside computes a function of one example, as far as public
    means of torch go: no printing of tensors (the text shows all examples), no operator or autograd function
    with its own batching rule, no mode below `vmap`, no hooks on tensors saved for the backward pass. Hooks
    on gradients cannot be attached: inside, a tensor does not know its own graph.
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
        if isinstance(func, OpOverload | OpOverloadPacket) and _namespace(func) not in ("aten", "prims"):
            raise BatchAccessError(f"the operator {func} may have its own batching rule")
        if getattr(func, "__name__", "") == "custom_function_call" and _has_custom_rule(args[0]):
            raise BatchAccessError(f"the autograd function {args[0].__name__} has its own batching rule")
        return func(*args, **(kwargs or {}))


def _namespace(operator: OpOverload | OpOverloadPacket) -> str:
    packet = operator._overloadpacket if isinstance(operator, OpOverload) else operator
    return str(packet._qualified_op_name).partition("::")[0]


def _has_custom_rule(function: Any) -> bool:
    own = function.vmap is not torch.autograd.Function.vmap
    return own and function.__module__.partition(".")[0] != "topdp"
