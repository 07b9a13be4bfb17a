"""Words of other libraries for what topdp names otherwise: a wrong name is answered by the right one."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeVar

from topdp.errors import InputError


class OwnWord(NamedTuple):
    """What topdp calls something: the argument in Python, the key in configurations, and a note."""

    argument: str
    key: str
    note: str = ""


_LEARNING_RATE = OwnWord("learning_rate", "train.learning_rate")
_ROUNDS = OwnWord("rounds", "rounds", " With full batches, a round is one pass over all records.")
_CLIP = OwnWord("clip", "privacy.clip")
_EPSILON = OwnWord("epsilon", "privacy.epsilon")
_DELTA = OwnWord("delta", "privacy.delta")
_NOISE = OwnWord(
    "epsilon",
    "privacy.epsilon",
    " The noise follows from it. To fix the noise itself, give sigma: its deviation in an agent's mean "
    "gradient, per unit of clip, which is not the noise multiplier.",
)
_BATCH = OwnWord("batch", "data.batch", ' For example {"poisson": 20}: on average 20 records a round.')
_OPTIMISER = OwnWord("optimiser", "train.optimiser")
_TOPOLOGY = OwnWord("topology", "topology.kind")
_AGENTS = OwnWord("topology", "topology.agents", " The graph has one vertex for each agent.")
_SHARDS = OwnWord("shards", "data.name", " In Python, make it with topdp.Shards.")
_MODEL = OwnWord("model", "model.name")
_LOSS = OwnWord("loss", "train.loss")
_SEED = OwnWord("seed", "seed", " It does not determine the noise.")
_PROGRESS = OwnWord("progress", "", " It is a function, or topdp.silent.")
_FOLDER = OwnWord("out", "", " On the command line: --out.")

OTHER_WORDS: dict[str, OwnWord] = {
    **dict.fromkeys(
        ["lr", "eta", "eta0", "step_size", "stepsize", "learningrate", "alpha_lr"], _LEARNING_RATE
    ),
    **dict.fromkeys(["learning_rate_init", "server_lr", "local_lr"], _LEARNING_RATE),
    **dict.fromkeys(["epochs", "num_epochs", "n_epochs", "nb_epochs", "epoch", "max_epochs"], _ROUNDS),
    **dict.fromkeys(
        ["num_rounds", "n_rounds", "iterations", "n_iter", "max_iter", "steps", "max_steps"], _ROUNDS
    ),
    **dict.fromkeys(["max_grad_norm", "l2_norm_clip", "clip_norm", "clipping_norm", "grad_clip"], _CLIP),
    **dict.fromkeys(["clipping_threshold", "l2_clip", "max_norm", "C"], _CLIP),
    **dict.fromkeys(["eps", "target_epsilon", "privacy_budget", "budget"], _EPSILON),
    **dict.fromkeys(["target_delta"], _DELTA),
    **dict.fromkeys(["noise_multiplier", "noise", "noise_scale", "noise_std", "noise_stddev"], _NOISE),
    **dict.fromkeys(["batch_size", "batchsize", "batch_sizes", "minibatch", "lot_size"], _BATCH),
    **dict.fromkeys(["sample_rate", "sampling_rate", "expected_batch_size", "poisson_sampling"], _BATCH),
    **dict.fromkeys(["optimizer", "optim"], _OPTIMISER),
    **dict.fromkeys(["graph", "adjacency_matrix", "network_topology"], _TOPOLOGY),
    **dict.fromkeys(["num_clients", "n_clients", "clients", "num_agents", "n_agents", "nodes"], _AGENTS),
    **dict.fromkeys(["num_nodes", "n_workers", "workers", "n_sites"], _AGENTS),
    **dict.fromkeys(["data", "dataset", "datasets", "train_loader", "data_loader", "x", "X"], _SHARDS),
    **dict.fromkeys(["net", "network", "module", "estimator"], _MODEL),
    **dict.fromkeys(["criterion", "loss_fn", "objective", "loss_function"], _LOSS),
    **dict.fromkeys(["random_state", "random_seed", "rng"], _SEED),
    **dict.fromkeys(["verbose", "progress_bar", "show_progress"], _PROGRESS),
    **dict.fromkeys(["output_dir", "save_dir", "log_dir", "folder"], _FOLDER),
}


class UnknownArgumentError(InputError, TypeError):
    """An argument that a function does not have. The message names the argument that may be meant."""


def key_hint(word: str) -> str:
    """Return what to use instead of the last part of an unknown configuration key; empty if it is unknown.

    >>> key_hint("lr")
    " Use 'train.learning_rate'."
    """
    own = OTHER_WORDS.get(word)
    return "" if own is None or not own.key else f" Use {own.key!r}.{own.note}"


OPTION_KEYS = {
    "epsilon": "privacy.epsilon",
    "method": "method.name",
    "data": "data.name",
    "schema": "data.schema",
    "model": "model.name",
    "agents": "topology.agents",
    "topology": "topology.kind",
    "rounds": "rounds",
    "seed": "seed",
}
"""The keys for which `topdp run` has an option."""


def key_of_option(option: str) -> str:
    """Return how to set what an unknown option of a command means; empty if that is not known.

    >>> key_of_option("--epsilon"), key_of_option("--max-grad-norm"), key_of_option("--fast")
    (' Use --set privacy.epsilon=...', ' Use --set privacy.clip=...', '')
    """
    word = option.lstrip("-").replace("-", "_")
    own = OTHER_WORDS.get(word)
    key = OPTION_KEYS.get(word) or ("" if own is None else own.key)
    return f" Use --set {key}=..." if key else ""


Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")


def explain_unknown_arguments(function: Callable[Arguments, Returned]) -> Callable[Arguments, Returned]:
    """Return `function` with an error that names the right argument if a keyword argument is unknown."""
    known_arguments = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def checked(*positional: Arguments.args, **named: Arguments.kwargs) -> Returned:
        for name in named:
            if name not in known_arguments:
                where = function.__qualname__.removesuffix(".__init__")
                raise UnknownArgumentError(
                    f"{where}() has no argument {name!r}.{_argument_hint(name, known_arguments)}"
                )
        return function(*positional, **named)

    return checked


def _argument_hint(name: str, known_arguments: list[str]) -> str:
    own = OTHER_WORDS.get(name)
    if own is not None and own.argument in known_arguments:
        return f" Use {own.argument!r}.{own.note}"
    near = difflib.get_close_matches(name, known_arguments, n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known_arguments)}."
