"""`topdp.aggregate`: the private mean of a bounded vector per record, as one release of a plan.

The vector of a record is the negated gradient of a linear model with the loss `linear`, whatever its
parameters are. A run with 0 rounds, the step size 1 and the start 0 ends with the mean of all vectors, plus
the noise of the plan. Nothing else is needed: plan, calibration, account, engine and run folder
are those of `topdp.train`, and agents execute the same configuration (`rounds = 0`, `train.loss = "linear"`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from topdp.base.array_types import Floats
from topdp.base.progress import Progress, silent
from topdp.data import Shards
from topdp.data.features.user_features import UserFeatures
from topdp.errors import InputError
from topdp.learning.models import linear
from topdp.plan import Plan
from topdp.privacy.accounting import Account
from topdp.privacy.answers import ADAPTIVE, guarantee_kind
from topdp.privacy.residual_noise import residual_noise
from topdp.runs.config import did_you_mean
from topdp.runs.methods import METHODS
from topdp.runs.result import Result
from topdp.runs.statistics.standardisation_cost import agreeing_method
from topdp.runs.user_training import expect_shards, train
from topdp.topology import Topology, as_topology, complete

# (inputs of one record, its target) -> the vector of the record
RecordVector = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Aggregate:
    """The private mean of one vector per record, over the records of all agents.

    >>> import torch, topdp
    >>> x = torch.rand(4, 500, 2)
    >>> shards = topdp.Shards.from_arrays([(part, part[:, 0]) for part in x])
    >>> found = topdp.aggregate(lambda x, y: x, shards, topdp.topology.ring(4), bound=2**0.5, epsilon=1.0)
    >>> found.records, found.mean.shape, round(found.deviation, 5)
    (2000, (2,), 0.00308)
    """

    records: int
    """The number of records of all agents. It is public."""
    mean: Floats
    """[d] The mean over all records, with noise: the average of the agents' estimates."""
    deviation: float
    """The standard deviation of the noise in each number of `mean`. It follows from the plan alone."""
    result: Result = field(repr=False)

    @property
    def total(self) -> Floats:
        """[d] The sum over all records, with noise of the standard deviation `records * deviation`."""
        return self.records * self.mean

    @property
    def estimates(self) -> Floats:
        """[agents, d] The mean as each agent computes it. Averaging steps leave small differences."""
        return self.result.estimates.double().numpy()

    @property
    def privacy(self) -> Account:
        """The account of the release."""
        return self.result.privacy

    @property
    def plan(self) -> Plan:
        return self.result.plan

    def observer(self) -> str:
        """Return against whom the budget holds, in words."""
        name = self.privacy.guarantee
        if name is None:
            return "no budget: the noise was given"
        if self.result.config.method.name == "central":
            return "everyone who reads the result; one party that all trust holds the records"
        return guarantee_kind(name).against(self.privacy.colluders)

    def summary(self) -> dict[str, Any]:
        """Return the facts of the release for JSON."""
        return {
            "records": self.records,
            "method": self.result.config.method.name,
            "deviation": self.deviation,
            "observer": self.observer(),
            "privacy": self.privacy.summary(),
            "redrawable_noise": self.result.redrawable_noise,
        }


def aggregate(
    function: RecordVector,
    shards: Shards,
    topology: Topology | nx.Graph | str | Path | None = None,
    *,
    bound: float,
    epsilon: float | Sequence[float] | None = None,
    delta: float | Sequence[float] = 1e-5,
    sigma: float | Sequence[float] | None = None,
    method: str = "auto",
    guarantee: str = "adaptive",
    colluders: int = 1,
    adjacency: str = "add-remove",
    gossip: int | str = "auto",
    seed: int = 0,
    noise_seed: int | None = None,
    out: str | Path | None = None,
    device: str = "auto",
    progress: Progress = silent,
) -> Aggregate:
    """Return the private mean (and sum) of `function(inputs, target)` over all records, in one release.

    `function` returns a vector for one record, and is called for each record alone. `bound`: the largest norm
    of such a vector, from public knowledge; a longer vector is shortened to it. `topology`: the graph of the
    agents, as in `topdp.train`; None: one party that all trust holds all records (`central`).

    `method`: "correlated", "muffliato" or "central". "auto" is `correlated`, or `muffliato` if there are not
    more agents than colluders and the owner, because pair noise then hides nothing. `gossip`: the number of
    averaging steps; "auto": as many as let all agents agree. The other arguments are those of `topdp.train`.

    **Guarantees.** Those of a run whose plan has a single release with gradients. The account is computed
    from that plan. One record moves the sum by at most `bound` (twice that under `replace-one`), whatever
    `function` returns. The number of records is public.

    >>> import torch, topdp
    >>> shards = topdp.Shards.from_arrays([(torch.rand(300, 3), torch.rand(300)) for _ in range(5)])
    >>> ring = topdp.topology.ring(5)
    >>> found = topdp.aggregate(lambda x, y: y * x, shards, ring, bound=3**0.5, epsilon=1.0)
    >>> found.plan.rounds, round(found.privacy.adaptive.largest, 3)
    (0, 1.0)
    """
    expect_shards(shards)
    expect_no_persons(shards)
    return aggregate_vectors(
        record_vectors(function, shards),
        topology,
        bound=bound,
        epsilon=epsilon,
        delta=delta,
        sigma=sigma,
        method=method,
        guarantee=guarantee,
        colluders=colluders,
        adjacency=adjacency,
        gossip=gossip,
        seed=seed,
        noise_seed=noise_seed,
        out=out,
        device=device,
        progress=progress,
    )


def aggregate_vectors(
    vectors: Sequence[Tensor],
    topology: Topology | nx.Graph | str | Path | None = None,
    *,
    bound: float,
    method: str = "auto",
    colluders: int = 1,
    gossip: int | str = "auto",
    **settings: Any,
) -> Aggregate:
    """Return the private mean of vectors that are already computed: `vectors` [records, d] of each agent.

    The caller promises that a vector depends on one record only. Other arguments are those of `aggregate`.
    """
    if not (isinstance(bound, int | float) and math.isfinite(bound) and bound > 0):
        raise InputError(
            f"Expected bound to be a finite number > 0, got {bound!r}. It is the largest norm of the vector "
            "of a record, from public knowledge."
        )
    guarantee = settings.get("guarantee", ADAPTIVE.name)
    if not guarantee_kind(
        guarantee
    ).proved:  # the average of all estimates is more than one agent of `view` sees
        raise InputError(
            "Expected guarantee adaptive or worst-case, which cover the average of all agents, got "
            f"{guarantee!r}."
        )
    counts = tuple(len(part) for part in vectors)
    inputs = torch.zeros(len(vectors), max(counts), vectors[0].shape[1], dtype=torch.float64)
    for agent, part in enumerate(vectors):
        inputs[agent, : len(part)] = part
    shards = Shards(inputs=inputs, targets=torch.ones(inputs.shape[:2]).double(), counts=counts, classes=None)
    if (
        topology is None
    ):  # `central` pools the records, and a configuration names a graph of at least two agents
        graph, method = complete(max(2, len(vectors))), "central"
    else:
        graph = as_topology(topology)
        _expect_averaging(method)
    keys = agreeing_method(graph, colluders, method)
    result = train(
        linear(inputs.shape[2], classes=1).double(),
        shards,
        graph,
        loss="linear",
        rounds=0,
        method=keys["name"],
        gossip=keys.get("gossip", "auto") if gossip == "auto" else gossip,
        clip=float(bound),
        colluders=colluders,
        weights="equal",  # else the average of all agents is not the mean of all records
        learning_rate=1.0,
        fading="none",
        **settings,
    )
    return Aggregate(
        records=sum(counts),
        mean=result.estimates.double().mean(0).numpy(),
        deviation=float(np.sqrt(residual_noise(result.plan).average[-1])),
        result=result,
    )


def expect_no_persons(shards: Shards) -> None:
    """Raise InputError for shards that state persons, of whom one could move a sum several times."""
    if shards.persons is not None:
        raise InputError(
            "Expected shards without persons, because statistics protect one record each, got shards whose "
            "unit of protection is the person. Make one record for each person first."
        )


def _expect_averaging(method: str) -> None:
    """Raise InputError for methods after whose only release the estimates of agents differ."""
    if method != "auto" and method not in AGGREGATING:
        hint = did_you_mean(method, list(AGGREGATING)) if method not in METHODS else ""
        raise InputError(
            f"Expected method auto, {', '.join(AGGREGATING)} for one release, got {method!r}. With other "
            f"methods agents would not average what they release.{hint}"
        )


AGGREGATING = tuple(name for name, method in METHODS.items() if method.gossips or method.pools)


def record_vectors(function: RecordVector, shards: Shards) -> list[Tensor]:
    """Return for each agent the vectors [records, d] of its records, each computed from one record alone."""
    shape, inner = shards.inputs.shape[2:], shards.targets.shape[2:]
    kinds, width = (shards.inputs.dtype, shards.targets.dtype), math.prod(shape)

    def of_packed(record: Tensor) -> Tensor:
        inputs, target = record[:width].view(shape), record[width:].view(inner)
        vector = function(*(part.to(kind) for part, kind in zip((inputs, target), kinds, strict=True)))
        if not isinstance(vector, Tensor) or vector.dim() > 1:
            raise InputError(
                "Expected a function of one record that returns a vector as a tensor [d], got "
                f"{f'shape {tuple(vector.shape)}' if isinstance(vector, Tensor) else type(vector).__name__}."
            )
        return vector.double().reshape(-1)

    features = UserFeatures(of_packed)
    pairs = (
        (shards.inputs[agent, :count], shards.targets[agent, :count])
        for agent, count in enumerate(shards.counts)
    )
    return [features(torch.cat([part.double().reshape(len(x), -1) for part in (x, y)], 1)) for x, y in pairs]
