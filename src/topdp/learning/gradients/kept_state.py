"""Detection of state that a model and its loss keep from one call to the next.

If examples run isolated, kept state is the only remaining way in which they could influence each other. So
this module records everything that user code can reach before a call, and compares it after the call:
buffers, attributes, containers, class variables, global variables that the code names, closures, default
arguments. State that cannot be reached in this way is not found. This module runs no model.
"""

from __future__ import annotations

import array
import contextlib
import contextvars
import functools
import gc
import hashlib
import itertools
import os
import sys
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from topdp.errors import InputError
from topdp.learning.gradients.record_streams import generator_states
from topdp.learning.losses import PerExampleLoss

StateTokens = list[tuple[str, Any]]
"""(name of an object, what its state is compared by) for every object that was reached."""

PLAIN_TYPES = (type(None), bool, int, float, complex, str, bytes)
CONTAINER_TYPES = (list, tuple, set, frozenset, deque)
TRUSTED_PACKAGES = {"torch", "topdp", "numpy", *sys.stdlib_module_names}
STANDARD_MODULE_ATTRIBUTES = {
    name for name, value in vars(nn.Module()).items() if not isinstance(value, bool)
}
MAX_STATE_DEPTH = 30
PARAMETER_MIRRORS = {"_flat_weights", "_flat_weight_refs"}  # of nn.RNNBase


@final
class StateSnapshot:
    """The state that user code can reach before a call, to compare it with the state after the call.

    `contents`: also compare the values in tensors. Otherwise a tensor counts as unchanged if it is the same
    object with the same version number. This suffices inside `isolated_vmap`, because no value of an example
    can be written there without a change of the object or of its version number.
    """

    def __init__(
        self, code: Mapping[str, Any], *given: Tensor, contents: bool, what: str = "a model and a loss"
    ) -> None:
        """Record the state.

        `code`: the model, the loss or other code that will run, by name; `what` describes the code in
        messages. `given`: the records, which the code must not change either.
        """
        self._code = code
        self._what = what
        self._given = given
        self._contents = contents
        self._before, self._generators = self._tokens(), generator_states()
        self._versions = [tensor._version for tensor in given]

    def expect_unchanged(self) -> None:
        """Raise InputError if the state has changed.

        **Guarantees.** The error is raised if anything that the snapshot covers has changed, and before a
        result is returned. The snapshot also covers the global generators of Python and NumPy.
        """
        for before, after in itertools.zip_longest(self._before, self._tokens()):
            if before != after:
                raise _state_error((after or before)[0], self._what)
        for (name, before), (_, after) in zip(self._generators, generator_states(), strict=True):
            if before != after:
                raise InputError(
                    f"Expected {self._what} that do not use {name}, got code that does. Then a record could "
                    "change the random numbers of others. Draw with torch.rand and the like."
                )
        if self._versions != [tensor._version for tensor in self._given]:
            raise InputError(
                f"Expected {self._what} that do not change records, got code that writes into its "
                "input. Write into a copy: x = x.clone()."
            )

    def _tokens(self) -> StateTokens:
        tokens: StateTokens = []
        visited: dict[int, Any] = {}  # keeps the objects alive: otherwise Python could reuse an id
        for name, root in self._code.items():
            tokens += _state_tokens(root, name, visited, self._contents, 0)
        return tokens


def expect_no_leaked_tensors(before: set[int], what: str = "a model and a loss") -> None:
    """Raise InputError if user code kept a tensor of an example.

    `before`: the result of `leaked_tensors` before user code was called.

    **Guarantees.** The error is raised if a tensor that was made inside `isolated_vmap` since then still
    exists anywhere in this process.
    """
    if leaked_tensors() - before:
        gc.collect()
        if leaked_tensors() - before:
            raise _state_error("something outside the call, which still refers to one of its tensors", what)


def leaked_tensors() -> set[int]:
    """Return the ids of the tensors from inside `isolated_vmap` that still exist."""
    batched = torch._C._functorch.is_batchedtensor
    return {id(tensor) for tensor in gc.get_objects() if type(tensor) is Tensor and batched(tensor)}


def _state_error(path: str, what: str) -> InputError:
    return InputError(
        f"Expected {what} that keep nothing between calls, got code that changes {path}. Such state would "
        "let records bypass the clipping and the noise. Compute it in each call, create it in __init__, "
        "or put its layer into evaluation mode."
    )


def _state_tokens(
    value: Any, path: str, visited: dict[int, Any], contents: bool, depth: int
) -> Iterator[tuple[str, Any]]:
    """Yield (path, state) of `value` and of everything that can be reached from it; `path` names `value`."""
    if isinstance(value, PLAIN_TYPES):
        yield path, (type(value).__name__, repr(value))
        return
    if isinstance(value, Tensor):
        yield path, _tensor_token(value, contents)
        if vars(value) and id(value) not in visited:  # Python code may attach attributes to a tensor
            visited[id(value)] = value
            for name, part in vars(value).items():
                yield from _state_tokens(part, f"{path}.{name}", visited, contents, depth + 1)
        return
    yield path, _own_state(value)
    if id(value) in visited or depth > MAX_STATE_DEPTH:
        return
    visited[id(value)] = value
    for name, part in _parts(value):
        yield from _state_tokens(part, f"{path}{name}", visited, contents, depth + 1)


def _tensor_token(value: Tensor, contents: bool) -> Any:
    if not contents or torch._C._functorch.is_batchedtensor(value):
        return id(value), value._version
    raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return tuple(value.shape), value.dtype, hashlib.blake2b(raw.tobytes()).digest()


def _own_state(value: Any) -> Any:
    """Return the state of `value` that is not in its `_parts`."""
    if isinstance(value, (dict, *CONTAINER_TYPES)):
        return type(value).__name__, len(value)
    if isinstance(value, itertools.count | itertools.repeat):
        return repr(value)
    if isinstance(value, types.GeneratorType):
        return id(value), -1 if value.gi_frame is None else value.gi_frame.f_lasti
    if isinstance(value, types.MethodType):  # Python makes a new object on every access
        return id(value.__func__), id(value.__self__)
    if isinstance(value, np.ndarray | bytearray | memoryview | array.array):
        return type(value).__name__, hashlib.blake2b(np.asarray(value).tobytes()).digest()
    if isinstance(value, torch.Generator):
        return hashlib.blake2b(value.get_state().numpy().tobytes()).digest()
    return id(value)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (end of the path, object) for each object that code can reach directly from `value`."""
    if isinstance(value, nn.Module):
        yield from _module_parts(value)
    elif isinstance(value, dict):
        yield from (
            (f"[{key!r}]" if isinstance(key, PLAIN_TYPES) else "[...]", part) for key, part in value.items()
        )
    elif isinstance(value, CONTAINER_TYPES):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, types.MethodType):
        yield from ((".", value.__func__), (".", value.__self__))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, PerExampleLoss):
        yield "", value.loss
    elif isinstance(value, staticmethod | classmethod):
        yield ".", value.__func__
    elif isinstance(value, property):
        yield from (("." + name, getattr(value, name)) for name in ("fget", "fset") if getattr(value, name))
    elif hasattr(value, "__wrapped__") and callable(value):
        yield ".", value.__wrapped__
    elif isinstance(value, type):
        if not _is_trusted(value.__module__):
            yield from _attributes(dict(vars(value)))
            yield from (("", base) for base in value.__bases__)
    elif isinstance(value, contextvars.ContextVar):
        yield " (its value)", value.get(None)
    elif not isinstance(value, types.ModuleType | types.BuiltinFunctionType) and not _is_ours(type(value)):
        if hasattr(value, "__dict__"):
            yield from _attributes(vars(value))
            yield "", type(value)
        # For slots, iterators and random generators: compare what a copy of the object would be made from.
        with contextlib.suppress(Exception):  # objects that cannot be copied may raise any error
            yield " (inside)", value.__reduce_ex__(4)[1:]


def _module_parts(module: nn.Module) -> Iterator[tuple[str, Any]]:
    own = vars(module)
    # Every module of torch has many empty dictionaries; iterating over them costs nothing.
    for kind in STANDARD_MODULE_ATTRIBUTES:
        if isinstance(own.get(kind), dict):  # other attributes are flags that tell whether there are hooks
            yield from ((f".{key}", part) for key, part in own[kind].items())
    if isinstance(module, nn.RNNBase):  # it lists its parameters again, and may rebuild these lists
        own = {name: part for name, part in own.items() if name not in PARAMETER_MIRRORS}
    if not type(module).__module__.startswith("topdp."):
        yield from (
            (f".{name}", part) for name, part in own.items() if name not in STANDARD_MODULE_ATTRIBUTES
        )
        yield "", type(module)


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if _is_trusted(function.__module__):
        return
    yield from _attributes(vars(function))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" (closure {name})", cell.cell_contents
        except ValueError:  # the variable is not yet assigned
            continue
    yield from (("", default) for default in (function.__defaults__, function.__kwdefaults__) if default)
    names = {name for code in _nested_codes(function.__code__) for name in code.co_names}
    for name in sorted(names):
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            yield from _package_parts(value, name, names)
        elif name in function.__globals__:
            yield f" (global {name})", value
    if names & {"environ", "putenv"}:
        yield " (os.environ)", dict(os.environ)


def _package_parts(module: types.ModuleType, path: str, names: set[str]) -> Iterator[tuple[str, Any]]:
    """Yield what code that uses these `names` can reach in a module and in its submodules."""
    if _is_trusted(module.__name__):
        return
    for name in sorted(names & vars(module).keys()):
        value = vars(module)[name]
        if not isinstance(value, types.ModuleType):
            yield f" (global {path}.{name})", value
        elif value is not module and value.__name__.startswith(f"{module.__name__}."):
            yield from _package_parts(value, f"{path}.{name}", names)


def _nested_codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested_codes(constant)


def _attributes(attributes: Any) -> Iterator[tuple[str, Any]]:
    yield from ((f".{name}", part) for name, part in attributes.items() if not name.startswith("__"))


def _is_ours(kind: type) -> bool:
    """Return whether torch or topdp defines the type `kind`; its objects hold only what these put there."""
    return kind.__module__.partition(".")[0] in ("torch", "topdp")


def _is_trusted(module: str | None) -> bool:
    return (module or "").partition(".")[0] in TRUSTED_PACKAGES
