"""Private standardisation: means and variances of the inputs from one release, as a fixed first layer.

The vector of a record x is (x/B, x²/(M·B)), where B bounds the norm of x and M its absolute numbers, both
from public knowledge. A longer vector is shortened, so a record with a longer x counts less.

Noise makes single variances useless where they are smaller than the noise. So means and variances are shrunk
to their average over all inputs, by the share of their spread that is noise (James and Stein 1961). Where the
noise dominates, all inputs then have almost the same scale, and elsewhere their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from topdp.base.array_types import Floats
from topdp.base.progress import Progress, silent
from topdp.data import Shards
from topdp.learning.models import FlatModel, linear
from topdp.learning.standardise import Standardise
from topdp.learning.tasks import Task
from topdp.plan.noise_key import NoiseKey
from topdp.privacy.residual_noise import residual_noise
from topdp.runs.assembly import Assembly
from topdp.runs.config import ConfigError
from topdp.runs.planning import query_of
from topdp.runs.run_folder import RunFolder
from topdp.runs.statistics.standardisation_cost import SETTINGS, public_bounds, release_plan, release_run

STANDARDISATION = "standardisation"  # the entry of run.json
LEAST_VARIANCE_SHARE = 0.01  # of the average variance: the least variance of an input after shrinkage


@dataclass(frozen=True, kw_only=True)
class Standardisation:
    """The released means and deviations of the inputs of a run, [inputs] each. Both are public."""

    mean: Floats
    deviation: Floats
    noise: tuple[float, float]
    """The standard deviation of the noise of each mean, and of each mean square, before shrinkage."""

    def facts(self) -> dict[str, Any]:
        """Return the entry of run.json from which `of_facts` restores it."""
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist(), "noise": list(self.noise)}

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> Standardisation:
        noise = facts["noise"]
        return cls(
            mean=np.array(facts["mean"]),
            deviation=np.array(facts["deviation"]),
            noise=(float(noise[0]), float(noise[1])),
        )

    def before(self, model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> nn.Sequential:
        """Return the model behind a fixed layer that standardises records of this shape."""
        layer = Standardise(
            *(torch.as_tensor(part, dtype=dtype).view(shape) for part in (self.mean, self.deviation))
        )
        return nn.Sequential(layer, model)

    def tensors(self, shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the constants under the names that they have in the model of `before`."""
        model = self.before(nn.Identity(), shape, dtype)
        return {name: value.detach() for name, value in model.named_parameters()}

    def prepared(self, parts: Assembly) -> Assembly:
        """Return the assembly whose model begins with the standardisation."""
        flat, shape = parts.flat, tuple(parts.shards.inputs.shape[2:])
        return replace(parts, flat=FlatModel(self.before(flat.module, shape, flat.dtype)))


def kept_standardisation(folder: RunFolder) -> Standardisation | None:
    """Return the standardisation that run.json contains; None if the run has none."""
    return standardisation_of_facts(folder.read_json("run.json"))


def standardisation_of_facts(facts: Mapping[str, Any]) -> Standardisation | None:
    """Return the standardisation that the entries of a run.json contain; None if there is none."""
    stored = facts.get(STANDARDISATION)
    return None if stored is None else Standardisation.of_facts(stored)


def release_standardisation(parts: Assembly, key: NoiseKey, progress: Progress = silent) -> Standardisation:
    """Release means and variances of the inputs of all agents, with the share of the budget for them.

    **Guarantees.** The noise is that of `standardisation_cost.release_plan`, which the account of the run
    counts. The result is a function of the estimates that agents have after the release. It follows from the
    noise key of the run, so a run that begins again with its key makes the same release.
    """
    if parts.everyone is not None or not parts.shards.inputs.is_floating_point():
        raise ConfigError(
            f"data.standardise: expected inputs that are numbers, and one process, with {SETTINGS}, got "
            f"{'several ranks' if parts.everyone is not None else 'token ids'}. Set it to none."
        )
    progress("releasing means and variances")
    release = release_run(parts.run)
    plan, _ = release_plan(release, query_of(release.config, progress))
    norm, largest = public_bounds(parts.run.config, math.prod(parts.shards.inputs.shape[2:]))
    shards = _moments(parts.shards, norm, largest)
    assembly = Assembly(
        run=release,
        shards=shards,
        flat=FlatModel(linear(shards.inputs.shape[2], classes=1).double()),
        device=parts.device,
        task=Task.of("linear"),
    )
    engine = assembly.engine(plan, NoiseKey(key.derive(STANDARDISATION)))
    state = engine.start(assembly.start)
    while state.releases < plan.releases:
        state = engine.advance(state)
    means = engine.reported(state).double().mean(0).cpu().numpy()
    engine.release_buffers()
    deviation = float(np.sqrt(residual_noise(plan).average[-1]))
    first, second = np.split(means, 2)
    noise = deviation * norm, deviation * norm * largest
    return standardisation_of(first * norm, second * norm * largest, noise)


def standardisation_of(mean: Floats, square: Floats, noise: tuple[float, float]) -> Standardisation:
    """Return the standardisation that follows from noisy means and mean squares of the inputs [inputs].

    >>> found = standardisation_of(np.array([0.5, -0.5]), np.array([0.34, 0.26]), (1e-9, 1e-9))
    >>> found.mean.round(3).tolist(), found.deviation.round(3).tolist()
    ([0.5, -0.5], [0.3, 0.1])
    """
    centre = shrunk(mean, noise[0])
    # The variance is E x² - (E x)². Its noise has both parts, and the square of noise is no part of it.
    variance = square - mean**2 + noise[0] ** 2
    spread = shrunk(variance, math.hypot(noise[1], 2 * noise[0] * math.sqrt(float(np.mean(mean**2)))))
    average = max(float(variance.mean()), noise[1] / math.sqrt(len(mean)), np.finfo(float).tiny)
    return Standardisation(
        mean=centre, deviation=np.sqrt(np.maximum(spread, LEAST_VARIANCE_SHARE * average)), noise=noise
    )


def shrunk(values: Floats, noise: float) -> Floats:
    """Return `values` [k] shrunk to their average by the share of their spread that is noise.

    >>> shrunk(np.array([1.0, 3.0]), 0.0).tolist(), shrunk(np.array([1.0, 3.0]), 9.0).tolist()
    ([1.0, 3.0], [2.0, 2.0])
    """
    average, spread = values.mean(), values.var()
    signal = 0.0 if spread <= noise**2 else 1 - noise**2 / spread
    return np.asarray(average + signal * (values - average))


def _moments(shards: Shards, norm: float, largest: float) -> Shards:
    """Return shards whose inputs are the vectors of the records, of norm at most √2 if the bounds hold."""
    x = shards.inputs.double().flatten(2)
    inputs = torch.cat([x / norm, x.square() / (norm * largest)], 2)
    ones: Tensor = torch.ones(inputs.shape[:2], dtype=torch.float64, device=inputs.device)
    return Shards(inputs=inputs, targets=ones, counts=shards.counts, classes=None)
