"""A resolved run with its model and records, and the engine that executes it.

For runs, figures and federations. Parts that do not fit each other are refused before anything is computed.
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
from topdp.data.record_checks import count_classes
from topdp.errors import InputError
from topdp.learning.gradients import ClippedGradients
from topdp.learning.losses import CUSTOM_LOSS
from topdp.learning.models import FlatModel
from topdp.learning.pretrained_models import split_backbone
from topdp.learning.tasks import Task
from topdp.plan import Plan
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.model_fit import expect_fitting
from topdp.runs.named_model import named_model, named_task
from topdp.runs.named_records import load_shards
from topdp.runs.resolve import resolve_outline
from topdp.runs.resolved_run import ResolvedRun
from topdp.runs.run_outline import RunOutline
from topdp.simulator.engine import Engine, Fetch, Intervention
from topdp.simulator.hostile import Attack, choose_attack
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.run_stacking import StackedBatches, StackedNoise, stack_plans, stack_shards

MAX_BACKBONE_NUMBERS = 1 << 29  # 2 GiB: larger outputs of frozen layers are computed in every release


class Everyone(NamedTuple):
    """The number of records of each agent, and the digest of all of them in their order."""

    counts: tuple[int, ...]
    digest: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Assembly:
    """A resolved run with its records and model; makes the engine for any plan of its agents."""

    run: ResolvedRun
    shards: Shards
    flat: FlatModel
    device: torch.device
    task: Task
    everyone: Everyone | None = None
    """Facts about the records of all agents, where `shards` are of some only."""

    @classmethod
    def of(
        cls, config: RunConfig, device: torch.device | str = "cpu", progress: Progress = silent
    ) -> Assembly:
        """Assemble a run from the names in `config`. Refuse wrong names before a data set is fetched."""
        task, outline = named_task(config), RunOutline.of(config)
        return cls.of_records(outline, load_shards(outline, progress, device), task, device)

    @classmethod
    def of_records(
        cls,
        outline: RunOutline,
        shards: Shards,
        task: Task,
        device: torch.device | str = "cpu",
        everyone: Everyone | None = None,
    ) -> Assembly:
        """The named model for records that are dealt out already."""
        shards = _fitted(shards, task)
        outputs = task.outputs(shards.targets.flatten(0, 1), shards.classes)
        model = named_model(outline.config, tuple(shards.inputs.shape[2:]), outputs)
        return cls.given(outline, model, shards, torch.device(device), task, everyone)

    @classmethod
    def given(
        cls,
        outline: RunOutline,
        model: nn.Module,
        shards: Shards,
        device: torch.device,
        task: Task,
        everyone: Everyone | None = None,
    ) -> Assembly:
        """A user's own model, records and task; raises ConfigError where they do not fit each other."""
        counts = shards.counts if everyone is None else everyone.counts
        if len(counts) != outline.graph.agents:
            raise ConfigError(
                f"Expected shards for the {outline.graph.agents} agents of the graph, got {len(counts)}."
            )
        shards, run = _fitted(shards, task), resolve_outline(outline, counts)
        flat = FlatModel(model)
        expect_fitting(flat, task, shards.inputs[0, :1], shards.targets[0, :1], _largest(shards, task))
        return cls(run=run, shards=shards, flat=flat, device=device, task=task, everyone=everyone)

    def digest(self) -> str:
        """Return the digest of all records of all agents."""
        return self.shards.digest() if self.everyone is None else self.everyone.digest

    @cached_property
    def gradients(self) -> ClippedGradients:
        privacy = self.run.config.privacy
        return ClippedGradients(self.flat, privacy.clip, self.task.loss, privacy.clipping)

    @property
    def attack(self) -> Attack | None:
        """The attack of the hostile agents, if there are any."""
        config = self.run.config
        return choose_attack(config.attack, self.run.graph.agents, config.seed)

    @property
    def start(self) -> Tensor:
        """[d]: the public start of all agents."""
        return self.flat.flatten()

    @cached_property
    def _after_backbone(self) -> tuple[ClippedGradients, Shards]:
        """The trained part of the model, and its inputs: the outputs of frozen layers, computed once.

        Rows are the same, because they hold only trained parameters.
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
        if math.prod(shape) * self.shards.inputs[:, :, 0].numel() > MAX_BACKBONE_NUMBERS:
            return self.gradients, self.shards
        try:
            shards = of_shards(self.shards, features, self.device)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # of a record, which then counts as zero: no record may end a run
            return self.gradients, self.shards
        privacy = self.run.config.privacy
        gradients = ClippedGradients(trained, privacy.clip, self.task.loss, privacy.clipping)
        return gradients, shards

    def engine(self, plan: Plan, layout: RowLayout | None = None, fetch: Fetch | None = None) -> Engine:
        """Return the engine of all agents or, with a `layout`, of those agents that this process holds."""
        gradients, shards = self._after_backbone
        attack, seed, batches = self.attack, self.run.config.seed, self.run.batches
        held = range(self.run.graph.agents) if layout is None else layout.agents.tolist()
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
    """Return one engine for many runs: their agents side by side, with the draws and batches of each run.

    All are tested on the first `test_records` of the first run. Runs that use all of the same records read
    them once, where the sets of records come in turn: a, b, c, a, b, c.
    """
    first = runs[0]
    stacked = StackedBatches(tuple((parts.run.batches, parts.run.config.seed) for parts in runs))
    distinct = _in_turn(runs) if stacked.full else len(runs)
    shards = stack_shards([parts.shards for parts in runs[:distinct]]) if distinct > 1 else first.shards
    if shards.test_inputs is not None and shards.test_targets is not None:
        test = shards.test_inputs[:test_records], shards.test_targets[:test_records]
        shards = replace(shards, test_inputs=test[0], test_targets=test[1])
    seeds = [parts.run.config.seed for parts in runs]
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
    """Return after how many runs the records of the first run repeat, and so on to the end of `runs`."""
    turn = next((at for at, parts in enumerate(runs) if at and parts.shards is runs[0].shards), len(runs))
    again = len(runs) % turn == 0 and all(
        parts.shards is runs[at % turn].shards for at, parts in enumerate(runs)
    )
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
        classes = count_classes(held, "all agents", classes)
    if targets is shards.targets and test is shards.test_targets and classes == shards.classes:
        return shards
    return replace(shards, targets=targets, test_targets=test, classes=classes)


def _largest(shards: Shards, task: Task) -> int | None:
    """Return how many outputs the labels need, test records included, under a loss about classes."""
    if task.loss.name != "cross-entropy":
        return None
    labels = [shards.targets, *([] if shards.test_targets is None else [shards.test_targets])]
    return max(shards.classes or 0, *(int(part.max()) + 1 for part in labels))


def choose_device(name: str) -> torch.device:
    """Return the device with this name; `auto` is a GPU if there is one."""
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
