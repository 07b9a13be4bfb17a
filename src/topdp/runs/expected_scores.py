"""The score that each member can expect alone and together, from test records that are declared public.

Nothing is learned from a private record: half of the public test records take the place of the members'
records, with the noise that the members' models would have, and the other half tests the result. So nobody
pays for it. Unless `data.public_test` is true, test records and held-out records count as private, and there
are no expected scores.

A member alone has at most as many of the records as it holds. Full batches are used. The score of a real run
differs as far as its records differ from the test records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import numpy as np
import torch

from topdp.base.array_types import Floats
from topdp.base.progress import Progress, silent
from topdp.data import Shards, featured_shards
from topdp.errors import InputError
from topdp.plan.noise_key import NoiseKey
from topdp.plan.random_streams import stream
from topdp.runs.assembly import Assembly
from topdp.runs.auto_values import with_keys
from topdp.runs.config import RunConfig
from topdp.runs.methods import POOLED
from topdp.runs.metric_labels import metric_names
from topdp.runs.named_model import named_task
from topdp.runs.named_records import load_shards, named_features
from topdp.runs.planning import plan_and_account
from topdp.runs.recommend import pooled_deviation
from topdp.runs.resolved_run import ResolvedRun
from topdp.runs.run import PlannedRun, execute
from topdp.runs.run_outline import RunOutline

MAX_PUBLIC_RECORDS = 2000  # half of them train, half of them test
MAX_SCORED_MEMBERS = 8  # different members; those between them have no score
SCORE_REPEATS = 3  # trainings whose scores are averaged


def expected_scores(
    run: ResolvedRun, gains: Mapping[str, Any], progress: Progress = silent
) -> dict[str, Any]:
    """Return the `metric` and its expected value for each member `alone` and `together` (None: not computed).

    `gains`: the result of `member_gains`. Raise InputError unless the test records are public, and enough.
    """
    if not run.config.data.public_test:
        raise InputError("Expected data.public_test = true, got false: the test records count as private.")
    public = _public_records(run)
    half, total = len(public.inputs[0]), sum(run.counts)
    unit = pooled_deviation(run.config, run.counts) / run.config.privacy.clip
    members = list(zip(run.counts, gains["alone"], gains["together"], strict=True))
    chosen = _different(members)
    scores: dict[tuple[int, float], float] = {}
    metric = ""

    def score(records: int, noise: float) -> float:
        nonlocal metric
        key = min(records, half), unit * math.sqrt(noise)
        if key not in scores:
            progress(f"expected score {len(scores) + 1}, on public records")
            metric, scores[key] = _score(run.config, public, *key)
        return scores[key]

    expected = {
        member: (score(member[0], member[1]), score(total, float(f"{member[2]:.3g}"))) for member in chosen
    }
    alone, together = (
        [expected[member][place] if member in expected else None for member in members] for place in (0, 1)
    )
    return {"metric": metric, "alone": alone, "together": together, "records": 2 * half}


def _different(members: list[tuple[int, float, float]]) -> list[tuple[int, float, float]]:
    """Return different members, evenly from the one with the least noise alone to the one with most."""
    ordered = sorted(set(members), key=lambda member: member[1])
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), MAX_SCORED_MEMBERS))
    return [ordered[round(place)] for place in places]


def _public_records(run: ResolvedRun) -> Shards:
    """Return one shard with half of the public test records, and the other half as test records."""
    without = with_keys(run.config, data={"features": "none"})
    loaded = load_shards(RunOutline.of(without, run.graph))
    inputs, targets = loaded.test_inputs, loaded.test_targets
    if inputs is None or targets is None or len(inputs) < 2:
        raise InputError("Expected public test records with data.public_test = true, got none.")
    order = stream(run.config.seed, "public records").permutation(len(inputs))[:MAX_PUBLIC_RECORDS]
    first, second = torch.from_numpy(order).tensor_split(2)
    halves = Shards.from_arrays(
        [(inputs[first], targets[first])], test=(inputs[second], targets[second]), classes=loaded.classes
    )
    features = named_features(run.config)
    return halves if features is None else featured_shards.of_shards(halves, features, torch.device("cpu"))


def _score(config: RunConfig, public: Shards, records: int, sigma: float) -> tuple[str, float]:
    """Return the first metric and its value, if so many public records are trained on with this noise."""
    changed = with_keys(
        config,
        method={"name": POOLED.name, "mode": "sync"},
        robust={"rule": "mean"},
        attack={"name": "none"},
        privacy={"sigma": sigma, "epsilon": 1.0, "delta": 1e-5, "colluders": 0, "answers": []},
        data={"batch": "full"},
        train={"evaluate_every": config.rounds},
    )
    assert public.test_inputs is not None and public.test_targets is not None
    name, values = "", []
    for repeat in range(SCORE_REPEATS):
        order = torch.from_numpy(
            stream(config.seed, "public records", repeat).permutation(len(public.inputs[0]))[:records]
        )
        shards = Shards.from_arrays(
            [(public.inputs[0][order], public.targets[0][order])],
            test=(public.test_inputs, public.test_targets),
            classes=public.classes,
        )
        parts = Assembly.of_records(RunOutline.of(changed), shards, named_task(config))
        # The records are public, so the noise needs no secret key.
        result = execute(
            PlannedRun(parts, *plan_and_account(parts.run), NoiseKey.of_seed(repeat)), None, silent
        )
        line = result.metrics[-1]
        name = metric_names(line)[0]
        values.append(_number(line[name]["mean"]))
    return name, fmean(values)


def _number(value: float | Floats | None) -> float:
    """Return a metric as one number: the mean over classes if it has one value per class."""
    return float("nan") if value is None else float(np.mean(np.asarray(value, float)))
