"""The privacy cost of a standardisation before training: its budget and the account of both. No torch.

With `data.standardise = "private"`, a share s of μ² (`data.standardise_share`) pays for one release of means
and variances (`standardisation.py`), and training gets the rest: √s·μ and √(1-s)·μ, where μ is that of the
agent's budget. For every observer and every record, two mechanisms with μ₁ and μ₂ are together
√(μ₁² + μ₂²)-GDP, also if the second depends on the results of the first (Dong, Roth and Su 2022).

**Guarantees.** The account of a run with a standardisation covers both, for the answers `adaptive`,
`outsider` and `worst-case`. Of each, it composes the largest losses of both over all observers, which is at
least the largest composed loss. Every other answer is refused, and so are settings whose releases are not
Gaussian (Poisson batches). The release follows from the configuration and the record counts, as training
does, so both are accounted for before any record is read.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from topdp.base.array_types import Floats
from topdp.base.number_text import rounded_up
from topdp.plan import Plan
from topdp.privacy.accounting import Account, account
from topdp.privacy.answers import ADAPTIVE, ANSWERS, OUTSIDER, WORST_CASE, Answer
from topdp.privacy.basics.gaussian import epsilon_of, mu_of
from topdp.privacy.basics.privacy_loss import GaussianLoss
from topdp.privacy.noise_calibration import calibrate
from topdp.privacy.query import Query
from topdp.protocols.averaging import steps_to_agree
from topdp.runs.auto_values import noise_shares
from topdp.runs.config import GIVEN, ConfigError, RunConfig, parse
from topdp.runs.methods import METHODS
from topdp.runs.resolve import resolve
from topdp.runs.resolved_run import ResolvedRun
from topdp.runs.run_outline import RunOutline
from topdp.topology import Topology

COMPOSED_ANSWERS = (ADAPTIVE, OUTSIDER, WORST_CASE)
TYPICAL_SQUARE = 1 / 3  # of a number that is uniform in [-1, 1]
SETTINGS = 'data.standardise = "private"'

# The noise in which estimates of agents differ, relative to the noise of their mean, if own noise is divided
# among all agents and pair noise is 30 times as large (`auto_values.PAIR_NOISE_STRENGTHS`).
MAX_DISAGREEMENT = 0.1
LARGEST_PAIR_NOISE = 30.0


def standardises(config: RunConfig) -> bool:
    """Return whether a run releases means and variances before it trains."""
    return config.data.standardise == "private"


def expect_standardisable(outline: RunOutline) -> None:
    """Raise ConfigError for settings under which no account covers a release and training together."""
    config = outline.config
    answers = [kind.name for kind in COMPOSED_ANSWERS if kind.takes_budget]
    for wrong, expected, key in (
        (outline.epsilon is None, "a budget, of which it gets a share", "privacy.epsilon"),
        (
            config.data.batch != "full" and "poisson" in dict(config.data.batch),
            "full or cyclic batches",
            "data.batch",
        ),
        (outline.guarantee not in (*answers, None), " or ".join(answers), "privacy.guarantee"),
        (config.attack.name != "none", "no simulated attack", "attack.name"),
        (config.privacy.unit != "record", "the unit record", "privacy.unit"),
    ):
        if wrong:
            raise ConfigError(f"{key}: expected {expected} with {SETTINGS}. Change one of the two.")
    if not (config.data.standardise_norm or config.data.features == "scattering" or _has_ranges(config)):
        raise ConfigError(
            f"data.standardise_norm: expected the largest norm of a record's inputs with {SETTINGS}, from "
            "public knowledge, because no schema states ranges of these inputs, got none. Set it to a number."
        )


def public_bounds(config: RunConfig, inputs: int) -> tuple[float, float]:
    """Return the norm up to which a record counts in full, and the largest absolute value of an input."""
    if config.data.standardise_norm is not None:
        norm = config.data.standardise_norm
        return norm, 1.0 if _has_ranges(config) else norm
    if config.data.features == "scattering":
        return 1.0, 1.0
    return math.sqrt(inputs * TYPICAL_SQUARE), 1.0


def _has_ranges(config: RunConfig) -> bool:
    """Return whether public ranges scale all inputs to [-1, 1]."""
    from topdp.data.catalogue import CATALOGUE

    if config.data.features != "none":
        return False
    named = CATALOGUE.get(config.data.name)
    table = named is not None and bool(named.deviation) and len(named.shapes["train_inputs"]) == 2
    return table or config.data.schema is not None


def training_epsilon(run: ResolvedRun) -> Floats:
    """Return the ε of each agent [agents] that is left for training."""
    assert run.epsilon is not None
    if not standardises(run.config):
        return run.epsilon
    left = math.sqrt(1 - run.config.data.standardise_share)
    return np.asarray(epsilon_of(left * mu_of(run.epsilon, run.delta), run.delta))


def release_run(run: ResolvedRun) -> ResolvedRun:
    """Return the run that releases means and variances: one release on the graph and the counts of `run`."""
    config, agents = run.config, run.graph.agents
    assert run.epsilon is not None
    spent = math.sqrt(config.data.standardise_share) * mu_of(run.epsilon, run.delta)
    colluders = config.privacy.colluders
    method = {"name": config.method.name} if run.method.pools else agreeing_method(run.graph, colluders)
    tree: dict[str, Any] = {
        "rounds": 0,
        "seed": config.seed,
        "topology": config.topology.model_dump(exclude_none=True),
        "method": method,
        "privacy": {
            **config.privacy.model_dump(include={"delta", "guarantee", "answers", "colluders", "adjacency"}),
            "epsilon": np.broadcast_to(epsilon_of(spent, run.delta), agents).tolist(),
            "clip": math.sqrt(2),  # the norm of both parts of a record's vector (`standardisation.py`)
            "weights": "equal",
        },
        "data": {"name": GIVEN},
        "model": {"name": GIVEN},
        "train": {"loss": "linear", "learning_rate": 1.0, "fading": "none"},
    }
    return resolve(parse(tree, "standardisation"), run.graph, run.counts)


def release_plan(release: ResolvedRun, query: Query) -> tuple[Plan, Account]:
    """Return the calibrated plan of `release_run`, and its account."""
    privacy = release.config.privacy
    assert release.epsilon is not None
    calibrated = calibrate(
        release.write_plan,
        release.analysis,
        privacy.guarantee,
        release.epsilon,
        privacy.delta,
        query,
        noise_shares(release),
    )
    plan = release.write_plan(calibrated.deviation)
    return plan, account(
        plan,
        release.analysis,
        privacy.delta,
        answers=release.answers,
        guarantee=privacy.guarantee,
        known=calibrated.view,
        query=query,
    )


def with_release(training: Account, released: Account, share: float) -> Account:
    """Return the account of a run that makes the release and then trains.

    >>> from topdp.runs.planning import plan_and_account
    >>> from topdp.runs.config import RunConfig
    >>> config = RunConfig.model_validate({"data": {"standardise": "private", "features": "scattering"}})
    >>> plan, both = plan_and_account(resolve(config))
    >>> round(both.adaptive.largest, 4), both.claimed.status.value
    (1.0, 'refused')
    """
    composed = {kind.key for kind in COMPOSED_ANSWERS}
    answers = {}
    for key, answer in training.answers.items():
        before = released.answers[key]
        if not answer.asked:
            answers[key] = answer
        elif key not in composed or answer.mu is None or before.mu is None:
            answers[key] = Answer(
                None, f"No {ANSWERS[key].name} analysis covers a standardisation before training."
            )
        else:
            mu = np.hypot(answer.mu, before.mu) * (1 + 4 * np.finfo(float).eps)
            answers[key] = replace(
                answer,
                epsilon=np.asarray(epsilon_of(mu, training.deltas)),
                losses=tuple(GaussianLoss(float(each)) for each in mu),
                observers=None,  # who learns most from both together is not computed
                view=None,
            )
    alone = released.answer(training.guarantee or WORST_CASE.name).largest
    prepared = (
        f"This includes private means and variances of the inputs, which were released before training with "
        f"{100 * share:.3g}% of μ²: alone ε = {rounded_up(math.inf if alone is None else alone)}."
    )
    return replace(training, answers=answers, prepared=prepared)


def agreeing_method(graph: Topology, colluders: int, method: str = "auto") -> dict[str, Any]:
    """Return the keys of `method` for one release after which all agents have almost the same estimate.

    `method` "auto": `correlated`, or `muffliato` if there are not more agents than colluders and the owner.

    >>> from topdp import topology
    >>> agreeing_method(topology.ring(6), 1), agreeing_method(topology.complete(2), 1)
    ({'name': 'correlated', 'gossip': 8}, {'name': 'muffliato', 'gossip': 1})
    """
    if method == "auto":
        method = "correlated" if graph.agents > colluders + 1 else "muffliato"
    if not METHODS[method].gossips:
        return {"name": method}
    steps = steps_to_agree(graph, MAX_DISAGREEMENT / (LARGEST_PAIR_NOISE * graph.agents))
    return {"name": method, "gossip": steps}
