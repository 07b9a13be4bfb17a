"""The model and the task that a configuration names. Torch is imported by the functions that need it."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from inspect import isbuiltin, isclass
from typing import TYPE_CHECKING, Any

from topdp.errors import TopdpError
from topdp.runs.config import GIVEN, ConfigError, RunConfig, did_you_mean

WORD_COUNTS = "words"  # the model of texts, which needs the number of token ids

if TYPE_CHECKING:
    from torch import nn

    from topdp.learning.tasks import Task


def named_task(config: RunConfig) -> Task:
    """Return the loss of a configuration and the metrics reported beside it. Raise ConfigError for functions
    and unknown metrics.
    """
    from topdp.learning.metrics import METRICS
    from topdp.learning.tasks import Task

    expect_named_task(config)
    for name in config.train.metrics or ():
        if name not in METRICS:
            raise ConfigError(f"train.metrics: got {name!r}.{did_you_mean(name, list(METRICS))}")
    return Task.of(config.train.loss, config.train.metrics)


def expect_named_task(config: RunConfig) -> None:
    """Raise ConfigError if the loss or a metric is a function, which only `topdp.train` can use."""
    for key, value in (
        ("loss", config.train.loss),
        *(("metrics", metric) for metric in config.train.metrics or ()),
    ):
        if value.startswith(GIVEN):
            raise ConfigError(
                f"train.{key}: expected a name, got {value!r}, which stands for a Python function. Use a "
                f"name, or call topdp.train(..., {key}=...)."
            )


def named_model(config: RunConfig, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return the network that the configuration names, initialised from its seed.

    It is one of the models of topdp, or what a user's own `package.module:factory` returns. Raise ConfigError
    if the factory fails or returns something else.
    """
    import torch

    factory = named_factory(config)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        try:
            network = factory(input_shape, outputs)
        except (MemoryError, TopdpError):
            raise
        except Exception as error:
            if "allocate memory" in str(error):  # torch has no error of its own for that
                raise
            raise ConfigError(
                f"model.name: expected {config.model.name!r} to make a torch module from (input shape, "
                f"outputs) = ({input_shape}, {outputs}), got an error in {_where(error)}: "
                f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(network, torch.nn.Module):
        raise ConfigError(
            f"model.name: expected {config.model.name!r} to make a torch module, got {network!r:.80}."
        )
    return network


def named_factory(config: RunConfig) -> Callable[[tuple[int, ...], int], Any]:
    """Return the function of (input shape, outputs) that the configuration names and that makes a model."""
    from topdp.learning import models

    name = config.model.name
    if name in models.MODELS:
        return models.MODELS[name]
    if name == WORD_COUNTS:
        vocabulary = _vocabulary(config)
        return lambda _, outputs: models.WordCounts(vocabulary, outputs)
    if ":" in name:
        return _user_factory(name)
    raise ConfigError(
        f"model.name: got {name!r}.{did_you_mean(name, [*models.MODELS, WORD_COUNTS, 'module:factory'])}"
    )


def _vocabulary(config: RunConfig) -> int:
    """Return the number of token ids of a text. Raise ConfigError for records that are no texts."""
    from topdp.data.catalogue import CATALOGUE
    from topdp.runs.named_records import named_schema

    if (entry := CATALOGUE.get(config.data.name)) is not None and entry.tokens:
        return entry.tokens
    schema = named_schema(config)
    if schema is None or schema.text is None:
        raise ConfigError(
            f"model.name: expected texts for {WORD_COUNTS!r}, with a schema that has the key text, got none. "
            "Use another model."
        )
    return schema.text.ids


def _where(error: Exception) -> str:
    """Return the innermost line of the user's own code in the traceback of `error`, as text."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if "site-packages" not in frame.filename] or frames
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else "the call itself"


def _user_factory(name: str) -> Callable[..., Any]:
    """Return the object that `package.module:factory` names. Raise ConfigError if it cannot make a model, as
    a built-in function cannot.
    """
    import torch

    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ConfigError(f"model.name: expected package.module:factory, got {name!r}.")
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise ConfigError(
            f"model.name: could not import {name!r}: {type(error).__name__}: {error}. Name the folder of "
            "your own modules in PYTHONPATH."
        ) from error
    other_class = isclass(factory) and not issubclass(factory, torch.nn.Module)
    if not callable(factory) or isbuiltin(factory) or other_class:
        raise ConfigError(
            f"model.name: expected {name!r} to be a function of (input shape, outputs) that makes a torch "
            f"module, got {factory!r:.80}."
        )
    return factory
