"""User code on many examples at once, in which no example can meet another: `vmap` over batches of one.

Each example is a batch of one inside, so whatever torch function the code calls acts on one example, whatever
the values are. `vmap` itself refuses code that reads values, writes into tensors from outside or reaches for
storage; here we refuse what would get behind it. What code keeps between calls is for `memory`.
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

_functorch: Any = torch._C._functorch  # its stubs lack what is about missing rules


@final
class BatchAccessError(Exception):
    """Code would see several examples at once; the message says how."""


def isolated_vmap(function: Callable[..., Any], in_dims: tuple[int | None, ...]) -> Callable[..., Any]:
    """`vmap` in which every example draws random numbers of its own.

    Where torch has no rule for many examples at once it takes one after the other, in words of its own that
    are not for users: `check` has ours.
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
    """An operator in `function` for which torch has no rule for many examples at once, if there is one."""
    before = _functorch._is_vmap_fallback_enabled()
    _functorch._set_vmap_fallback_enabled(False)
    try:
        function(*arguments)
    except Exception as error:  # in many types
        found = re.search(r"(\S+) hit the vmap fallback", str(error))
        return found[1] if found else None
    finally:
        _functorch._set_vmap_fallback_enabled(before)
    return None


@contextmanager
def forbid_batch_access() -> Iterator[None]:
    """Forbid user code inside `isolated_vmap` to reach the tensor of all examples.

    **Guarantees.** Together with `vmap`, code inside computes a function of one example, by public means of
    torch: no printing of tensors (the text shows all examples), no operator or autograd function with a rule
    of its own for batches, no mode below `vmap`, no hooks on what is saved for the backward pass. Hooks on
    gradients have nowhere to go: inside, a tensor does not know its own graph.
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
            raise BatchAccessError("the model makes text of a tensor, and the text shows all examples")
        if torch._C._len_torch_dispatch_stack() > self._modes:
            raise BatchAccessError("the model has a TorchDispatchMode, which sees all examples")
        if isinstance(func, OpOverload | OpOverloadPacket) and _namespace(func) not in ("aten", "prims"):
            raise BatchAccessError(f"the operator {func} may have a rule of its own for batches")
        if getattr(func, "__name__", "") == "custom_function_call" and _has_custom_rule(args[0]):
            raise BatchAccessError(
                f"the autograd function {args[0].__name__} has a rule of its own for batches"
            )
        return func(*args, **(kwargs or {}))


def _namespace(operator: OpOverload | OpOverloadPacket) -> str:
    packet = operator._overloadpacket if isinstance(operator, OpOverload) else operator
    return str(packet._qualified_op_name).partition("::")[0]


def _has_custom_rule(function: Any) -> bool:
    own = function.vmap is not torch.autograd.Function.vmap
    return own and function.__module__.partition(".")[0] != "topdp"
