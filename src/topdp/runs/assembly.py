"""Model, data and engine of a run, put together: the one place for runs, figures and federations.

Names have become objects in `runs/builders.py`; here they are brought together and must fit each other. What
does not fit is said before anything is computed or written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from topdp.base.progress import Progress, silent
from topdp.data import Shards, batch_selection
from topdp.data.featured_shards import of_shards
from topdp.data.features.user_features import UserFeatures
from topdp.data.record_checks import count_classes, expect_two_classes
from topdp.errors import InputError
from topdp.learning.backbone import split_backbone
from topdp.learning.gradients import ClippedGradients
from topdp.learning.losses import CUSTOM_LOSS
from topdp.learning.models import FlatModel
from topdp.learning.tasks import Task
from topdp.plan import Batches, Plan
from topdp.runs import builders
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.model_fit import expect_fitting
from topdp.runs.resolve_auto import settled
from topdp.simulator.engine import Engine, Fetch, Intervention
from topdp.simulator.hostile import Attack
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.run_stacking import StackedBatches, StackedNoise, stack_plans, stack_shards
from topdp.topology import Topology

LARGEST_KEPT = 1 << 29  # numbers: what frozen layers make of all records is kept up to this, 2 GiB


class Everyone(NamedTuple):
    """The number of records of each agent, and the digest of all of them in their order."""

    counts: tuple[int, ...]
    digest: str


@dataclass(frozen=True, eq=False)
class Assembly:
    """The graph, records and model of one run; makes the engine for any plan among them."""

    config: RunConfig
    graph: Topology
    shards: Shards
    flat: FlatModel
    device: torch.device
    task: Task
    everyone: Everyone | None = None
    """Where `shards` are of some agents only: what has to be known of all."""

    @classmethod
    def of(
        cls,
        config: RunConfig,
        device: torch.device | str = "cpu",
        progress: Progress = silent,
        shards: Shards | None = None,
        everyone: Everyone | None = None,
        graph: Topology | None = None,
    ) -> Assembly:
        """By the names in `config`; `shards`, where its records are dealt out already, `graph` likewise.

        Cheap checks come first: a wrong name is said before a data set is fetched.
        """
        builders.method(config)
        builders.rounded(config)
        task = builders.task(config)
        graph = builders.graph(config) if graph is None else graph
        builders.sigma(config, graph.agents)
        if shards is None:
            shards = builders.shards(config, graph.agents, progress, device)
        shards = _fitted(shards, task)
        outputs = task.outputs(shards.targets.flatten(0, 1), shards.classes)
        model = builders.model(config, tuple(shards.inputs.shape[2:]), outputs)
        return cls.given(config, graph, model, shards, torch.device(device), task, everyone)

    @classmethod
    def given(
        cls,
        config: RunConfig,
        graph: Topology,
        model: nn.Module,
        shards: Shards,
        device: torch.device,
        task: Task | None = None,
        everyone: Everyone | None = None,
    ) -> Assembly:
        """Of a user's own parts; `task`, where its loss or metrics are not those named in `config`."""
        counts = shards.counts if everyone is None else everyone.counts
        if len(counts) != graph.agents:
            raise ConfigError(
                f"Expected shards for the {graph.agents} agents of the graph, got {len(counts)}."
            )
        task = task or builders.task(config)
        shards = _fitted(shards, task)
        config = settled(config, graph, counts)
        flat = FlatModel(model)
        expect_fitting(flat, task, shards.inputs[0, :1], shards.targets[0, :1], _largest(shards, task))
        return cls(config, graph, shards, flat, device, task, everyone)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many records each agent holds."""
        return self.shards.counts if self.everyone is None else self.everyone.counts

    def digest(self) -> str:
        """Of all records of all agents."""
        return self.shards.digest() if self.everyone is None else self.everyone.digest

    @cached_property
    def gradients(self) -> ClippedGradients:
        privacy = self.config.privacy
        return ClippedGradients(self.flat, privacy.clip, self.task.loss, privacy.clipping)

    @property
    def batches(self) -> tuple[Batches, ...]:
        """One for each agent."""
        return builders.batches(self.config, self.counts)

    @property
    def attack(self) -> Attack | None:
        """What hostile agents do, where there are some."""
        return builders.attack(self.config, self.graph.agents)

    @property
    def start(self) -> Tensor:
        """[d]: the public start of all agents."""
        return self.flat.flatten()

    @cached_property
    def _after_backbone(self) -> tuple[ClippedGradients, Shards]:
        """What is trained, and records as that sees them: what frozen layers make of those is computed once.

        The rows are the same: parameters that are not trained have no place in them.
        """
        parts = split_backbone(self.flat.module)
        if parts is None or self.flat.dtype != torch.float32:  # the type in which features are kept
            return self.gradients, self.shards
        frozen, trained = parts
        features = UserFeatures(frozen)
        try:
            shape = features.shape(self.shards.inputs[0, 0].cpu())
        except InputError:  # no function of one record: then it is one part of the model, and looked at there
            return self.gradients, self.shards
        if math.prod(shape) * self.shards.inputs[:, :, 0].numel() > LARGEST_KEPT:
            return self.gradients, self.shards
        try:
            shards = of_shards(self.shards, features, self.device)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # of a record, which then counts as zero: no record may end a run
            return self.gradients, self.shards
        privacy = self.config.privacy
        gradients = ClippedGradients(trained, privacy.clip, self.task.loss, privacy.clipping)
        return gradients, shards

    def engine(self, plan: Plan, layout: RowLayout | None = None, fetch: Fetch | None = None) -> Engine:
        """Of all agents; with a `layout`, of those that it holds here, for its pruned plan."""
        gradients, shards = self._after_backbone
        attack, seed, batches = self.attack, self.config.seed, self.batches
        held = range(self.graph.agents) if layout is None else layout.agents.tolist()
        select = None if layout is None else partial(batch_selection.select_for_agents, held, batches, seed)
        return Engine(
            plan,
            gradients,
            shards if attack is None else attack.records(shards),
            [batches[agent] for agent in held],
            seed=seed,
            device=self.device,
            select=select,
            metrics=self.task.metrics,
            intervention=Intervention(tamper=attack, hostile=() if attack is None else attack.hostile),
            layout=layout,
            fetch=fetch,
        )


def stacked_engine(runs: Sequence[Assembly], plans: Sequence[Plan], test_records: int) -> Engine:
    """One engine for many runs: their agents side by side, each with the draws and batches it has alone.

    All are tested on the first `test_records` of the first run. Runs that use all of the same records read
    them once, where the sets of records come in turn: a, b, c, a, b, c.
    """
    first = runs[0]
    stacked = StackedBatches(tuple((one.batches, one.config.seed) for one in runs))
    distinct = _in_turn(runs) if stacked.full else len(runs)
    shards = stack_shards([one.shards for one in runs[:distinct]]) if distinct > 1 else first.shards
    if shards.test_inputs is not None and shards.test_targets is not None:
        test = shards.test_inputs[:test_records], shards.test_targets[:test_records]
        shards = replace(shards, test_inputs=test[0], test_targets=test[1])
    seeds = [one.config.seed for one in runs]
    return Engine(
        stack_plans(plans),
        first.gradients,
        shards,
        stacked.batches,
        seed=seeds[0],
        device=first.device,
        draws=StackedNoise(plans, seeds),
        select=stacked.select,
        copies=len(runs) // distinct,
        metrics=first.task.metrics,
    )


def _in_turn(runs: Sequence[Assembly]) -> int:
    """After how many runs the records of the first come again, and so on to the end: they are read once."""
    turn = next((at for at, one in enumerate(runs) if at and one.shards is runs[0].shards), len(runs))
    again = len(runs) % turn == 0 and all(one.shards is runs[at % turn].shards for at, one in enumerate(runs))
    return turn if again else len(runs)


def _fitted(shards: Shards, task: Task) -> Shards:
    """The same shards with targets in the type that the loss needs; themselves where they have it."""
    for agent, count in enumerate(shards.counts):
        task.targets(shards.targets[agent, :count], f"agent {agent}")
    targets, test = task.targets(shards.targets, "padding"), shards.test_targets
    if test is not None:
        test = task.targets(test, "test records")
    classes = shards.classes if task.loss.name in (CUSTOM_LOSS, "cross-entropy") else None
    if task.loss.name == "cross-entropy" and targets.dim() == 2:
        held = [targets[agent, :count].cpu().numpy() for agent, count in enumerate(shards.counts)]
        known = count_classes(held, "all agents") if classes is None else classes
        classes = expect_two_classes(known, "all agents")
    if targets is shards.targets and test is shards.test_targets and classes == shards.classes:
        return shards
    return replace(shards, targets=targets, test_targets=test, classes=classes)


def _largest(shards: Shards, task: Task) -> int | None:
    """Under a loss about classes, how many outputs the labels need, those of test records too."""
    if task.loss.name != "cross-entropy":
        return None
    labels = [shards.targets, *([] if shards.test_targets is None else [shards.test_targets])]
    return max(shards.classes or 0, *(int(one.max()) + 1 for one in labels))


def choose_device(name: str) -> torch.device:
    """`auto` takes a GPU when there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        device = torch.device("meta")
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index is not None):
        raise ConfigError(f"--device: expected auto, cpu, cuda or cuda:N, got {name!r}.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device: {name} was asked for, and this machine shows {torch.cuda.device_count()} CUDA "
            "devices. Use --device cpu, or --device auto."
        )
    return device
