"""A resolved run with its model and records, and the engine that executes it.

Used by runs, figures and federations. If these parts do not fit each other, an error is raised before any
computation.
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
from topdp.learning.gradients.path_check import expect_no_dropout_in_samples
from topdp.learning.losses import CUSTOM_LOSS
from topdp.learning.models import FlatModel
from topdp.learning.pretrained_models import split_backbone
from topdp.learning.tasks import Task
from topdp.plan import Plan
from topdp.plan.noise_key import NoiseKey
from topdp.runs.config import ConfigError
from topdp.runs.job_gradient import gradient_of
from topdp.runs.model_fit import expect_fitting
from topdp.runs.named_model import named_model, named_task
from topdp.runs.named_records import expect_unit, load_shards
from topdp.runs.resolve import resolve_outline
from topdp.runs.resolved_run import ResolvedRun
from topdp.runs.run_outline import RunOutline
from topdp.simulator.engine import Engine, Fetch, Intervention
from topdp.simulator.hostile import Attack, choose_attack
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.run_stacking import StackedBatches, StackedNoise, stack_plans, stack_shards

MAX_BACKBONE_NUMBERS = 1 << 29  # 2 GiB; larger outputs of frozen layers are not stored


class Everyone(NamedTuple):
    """The number of records of each agent, and the digest of the records of all agents in their order.

    If the person is the unit of protection, it is the number of persons.
    """

    counts: tuple[int, ...]
    digest: str


@dataclass(frozen=True, eq=False, kw_only=True)
class Assembly:
    """A resolved run with its records and model. It makes the engine for any plan of the agents."""

    run: ResolvedRun
    shards: Shards
    flat: FlatModel
    device: torch.device
    task: Task
    # Facts about the records of all agents; None if `shards` contains the records of all agents.
    everyone: Everyone | None = None

    @classmethod
    def of(
        cls, outline: RunOutline, device: torch.device | str = "cpu", progress: Progress = silent
    ) -> Assembly:
        """Assemble a run. Raise ConfigError for unknown names before a data set is fetched."""
        task = named_task(outline.config)
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
        """Assemble a run from an outline, the records of its agents, and the model that the outline names."""
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
        """Assemble a run from a user's own model, records and task. Raise ConfigError if they do not fit."""
        expect_unit(outline.config, shards)
        counts = shards.unit_counts if everyone is None else everyone.counts
        if len(counts) != outline.graph.agents:
            raise ConfigError(
                f"Expected shards for the {outline.graph.agents} agents of the graph, got {len(counts)}."
            )
        shards, flat = _fitted(shards, task), FlatModel(model)
        try:
            expect_fitting(flat, task, shards.inputs[0, :1], shards.targets[0, :1], _largest(shards, task))
        except ConfigError as error:
            raise ConfigError(f"{error}{_numbering_advice(shards, task)}") from error
        run = _resolved(outline, counts, flat, task, shards)
        expect_no_dropout_in_samples(flat.module, run.batches)
        return cls(run=run, shards=shards, flat=flat, device=device, task=task, everyone=everyone)

    def of_outline(self, outline: RunOutline) -> Assembly:
        """Return the assembly of another outline with the same records and the same model."""
        run = _resolved(outline, self.run.counts, self.flat, self.task, self.shards)
        return replace(self, run=run)

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
        """The public start of all agents [d]."""
        return self.flat.flatten()

    @cached_property
    def _after_backbone(self) -> tuple[ClippedGradients, Shards]:
        """The gradients and inputs of the trained part of the model, if frozen layers precede that part.

        The inputs are the outputs of the frozen layers, computed once. Otherwise, and if these outputs cannot
        be stored, the gradients and shards of the whole model. The rows are the same in both cases, because
        they contain only trained parameters.
        """
        parts = split_backbone(self.flat.module)
        if parts is None or self.flat.dtype != torch.float32:  # the type in which features are stored
            return self.gradients, self.shards
        frozen, trained = parts
        features = UserFeatures(frozen)
        try:
            shape = features.shape(self.shards.inputs[0, 0].cpu())
        except InputError:  # no function of one record; the gradients of the whole model check that as well
            return self.gradients, self.shards
        if math.prod(shape) * self.shards.inputs[:, :, 0].numel() > MAX_BACKBONE_NUMBERS:
            return self.gradients, self.shards
        try:
            shards = of_shards(self.shards, features, self.device)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception:  # due to a record; no record may end a run, and the whole model takes it as zero
            return self.gradients, self.shards
        privacy = self.run.config.privacy
        gradients = ClippedGradients(trained, privacy.clip, self.task.loss, privacy.clipping)
        return gradients, shards

    def engine(
        self,
        plan: Plan,
        key: NoiseKey | None = None,
        layout: RowLayout | None = None,
        fetch: Fetch | None = None,
    ) -> Engine:
        """Return the engine that executes `plan` for all agents, or only for the agents of `layout`.

        `key`: the noise key; None: a new one. `fetch`: how the engine gets rows of other agents.
        """
        gradients, shards = self._after_backbone
        attack, seed, batches = self.attack, self.run.config.seed, self.run.batches
        agents = range(self.run.graph.agents) if layout is None else layout.agents.tolist()
        key = key or NoiseKey.fresh()
        select = None
        if layout is not None:
            select = partial(batch_selection.select_for_agents, agents, batches, seed, key=key)
        return Engine(
            plan,
            gradients,
            shards if attack is None else attack.records(shards),
            [batches[agent] for agent in agents],
            seed=seed,
            key=key,
            device=self.device,
            select=select,
            metrics=self.task.metrics,
            intervention=Intervention(tamper=attack, hostile=() if attack is None else attack.hostile),
            layout=layout,
            fetch=fetch,
        )


def stacked_engine(
    runs: Sequence[Assembly], plans: Sequence[Plan], keys: Sequence[NoiseKey], test_records: int
) -> Engine:
    """Return one engine that executes all runs, each with its own key, draws and batches.

    All runs are tested on the first `test_records` test records of the first run. With full batches, runs
    that share a set of records read it from the same memory if the sets repeat in order: a, b, c, a, b, c.
    """
    first = runs[0]
    seeds = [parts.run.config.seed for parts in runs]
    of_runs = zip([parts.run.batches for parts in runs], seeds, keys, strict=True)
    stacked = StackedBatches(tuple(of_runs))
    distinct = _repeats_after(runs) if stacked.full else len(runs)
    shards = stack_shards([parts.shards for parts in runs[:distinct]]) if distinct > 1 else first.shards
    if shards.test_inputs is not None and shards.test_targets is not None:
        test = shards.test_inputs[:test_records], shards.test_targets[:test_records]
        shards = replace(shards, test_inputs=test[0], test_targets=test[1])
    return Engine(
        stack_plans(plans),
        first.gradients,
        shards,
        stacked.batches,
        seed=seeds[0],
        device=first.device,
        draws=StackedNoise(plans, keys),
        select=stacked.select,
        copies=len(runs) // distinct,
        metrics=first.task.metrics,
    )


def _repeats_after(runs: Sequence[Assembly]) -> int:
    """Return the number of runs after which the sets of records repeat in order; len(runs) if they do not."""
    period = next((i for i, parts in enumerate(runs) if i and parts.shards is runs[0].shards), len(runs))
    repeats = len(runs) % period == 0 and all(
        parts.shards is runs[i % period].shards for i, parts in enumerate(runs)
    )
    return period if repeats else len(runs)


def _resolved(
    outline: RunOutline, counts: tuple[int, ...], flat: FlatModel, task: Task, shards: Shards
) -> ResolvedRun:
    """Return the resolved run of an outline with this model."""
    record = tuple(shards.inputs.shape[2:]), shards.inputs.dtype, shards.input_length
    return resolve_outline(outline, counts, partial(gradient_of, outline.config, flat, task, *record))


def _fitted(shards: Shards, task: Task) -> Shards:
    """Return the shards with targets of the type that the loss needs; `shards` itself if nothing changes."""
    for agent, count in enumerate(shards.counts):
        task.targets(shards.targets[agent, :count], f"agent {agent}")
    targets, test = task.targets(shards.targets, "padding"), shards.test_targets
    if test is not None:
        test = task.targets(test, "test records")
    classes = shards.classes if task.loss.name in (CUSTOM_LOSS, "cross-entropy") else None
    if task.loss.name == "cross-entropy" and targets.dim() == 2:
        labels = [targets[agent, :count].cpu().numpy() for agent, count in enumerate(shards.counts)]
        classes = count_classes(labels, "all agents", classes)
    if targets is shards.targets and test is shards.test_targets and classes == shards.classes:
        return shards
    return replace(shards, targets=targets, test_targets=test, classes=classes)


def _largest(shards: Shards, task: Task) -> int | None:
    """Return how many outputs the labels of all records need; None if the loss is not about classes."""
    if task.loss.name != "cross-entropy":
        return None
    labels = [shards.targets, *([] if shards.test_targets is None else [shards.test_targets])]
    return max(shards.classes or 0, *(int(part.max()) + 1 for part in labels))


def _numbering_advice(shards: Shards, task: Task) -> str:
    """Return advice for labels that begin at 1; empty for others."""
    if task.loss.name != "cross-entropy":
        return ""
    smallest = min(int(shards.targets[agent, :count].min()) for agent, count in enumerate(shards.counts))
    if smallest < 1:
        return ""
    return (
        f" The smallest label is {smallest}, and topdp numbers classes from 0: subtract {smallest} from all "
        "labels if they number the classes."
    )


def choose_device(name: str) -> torch.device:
    """Return the device with this name; `auto` is a GPU if there is one. Raise ConfigError without it."""
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
            f"--device: expected a CUDA device of this machine, got {name}, and it has "
            f"{torch.cuda.device_count()} CUDA devices. Use --device cpu, or --device auto."
        )
    return device
