"""What coalitions learn whatever gradients do: the view of those who can also read every agent's estimate.

An agent's gradient is taken at its estimate. Who sees all estimates, as they come, knows where all gradients
are taken; so the others' gradients, which are the same functions in both of two neighbouring worlds, are no
secret carriers of the owner's record any more. docs/privacy.md has the statement and the proof.

**Guarantees.** Observers: every coalition of `colluders` agents (which covers all smaller ones), with all
that `view` gives them and every agent's estimate of every round. **No assumption on gradients, models or
losses**: they may depend on all that was released before, and colluders may send whatever they like. What is
needed: a gradient reads its agent's own estimates, its own data, and randomness that no noise depends on; one
record changes it by at most the sensitivity, in the rounds of its batches, whatever came before; partners,
order and stops do not depend on data. Adjacency and sensitivity are the exposure's. `upper` is a certified
bound on the exact μ; where every row is seen it is exact. An estimate that is never sent counts as seen all
the same: without noise of its own the answer is infinite.

Where plans mix robustly (`Plan.robust`), rows are no sums of rows: there every row counts as seen, sent or
not. Then what a round adds is all that is new in it, whatever function of earlier rows it was added to.

Where rows are rounded (`Plan.rounded`), they are functions of sums. If every row is seen, rounding is
done to a release after its noise, and the answer stays; where a row is hidden from somebody, it is refused.

`outsider` is somebody who reads every link and every estimate, but knows nobody's draws.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from topdp.base.array_types import Bools, Floats
from topdp.base.progress import Progress
from topdp.plan import Plan
from topdp.privacy.basics.exposure import Exposure, check
from topdp.privacy.basics.refusals import NotCovered, PrivacyError
from topdp.privacy.observers.estimate_readers import closely
from topdp.privacy.observers.neighbourhoods import affordable, bounded_nearby
from topdp.privacy.observers.observer_filter import Public, expect_sums, seen_rows
from topdp.privacy.observers.reader_layout import UnsuitedError, Ways
from topdp.privacy.observers.shared_noise import (
    Coalition,
    Releases,
    bounded,
    information_of,
    looked_at,
    releases,
)
from topdp.privacy.observers.view import Bound, View, amplified, leading_view, view
from topdp.privacy.observers.view_effort import LIMIT, WIDEST, expect_bearable, look_work
from topdp.privacy.observers.worst_case import all_draws_count, every_round, information

PATIENCE = 60 * LIMIT
"""Work that is done for a patient user, about two hours of one core; beyond, neighbourhoods are a bound."""

COALITIONS = 2000
"""More coalitions than these are not looked at one by one unless the user is patient, where each is work."""


def adaptive(
    plan: Plan,
    exposure: Exposure,
    colluders: int = 1,
    progress: Progress | None = None,
    patient: bool = False,
    bound: Bound = "upper",
) -> View:
    """The loss of each owner to every coalition of so many agents who can read all estimates.

    0 colluders: somebody who reads estimates alone. `progress` is called after each coalition.
    `patient`: also where that takes very long. `bound`: as in `view`.

    >>> from topdp.privacy import exposure
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> adaptive(plan, exposure(6, sensitivity=1.0)).worst().round(2).tolist()
    [0.87, 0.87, 0.86, 0.86, 0.86, 0.86]
    """
    check(plan, exposure)
    expect_colluders(colluders, plan.agents)
    _expect_seen_if_rounded("adaptive", plan, colluders)
    if _shares_noise_in_the_open(plan, Public.ESTIMATES):
        return _by_coalitions(plan, exposure, colluders, patient)
    nearby = _nearby(plan, exposure, colluders, progress, patient, bound)
    if nearby is not None:
        return nearby
    coalitions = _coalitions(plan, Public.ESTIMATES, colluders, patient)
    return _seen_by(plan, exposure, Public.ESTIMATES, coalitions, progress, patient, bound)


def outsider(plan: Plan, exposure: Exposure, progress: Progress | None = None, patient: bool = False) -> View:
    """The loss of each owner to one who reads every link and every estimate and knows no draw.

    >>> from topdp.privacy import exposure
    >>> import numpy as np
    >>> from topdp import topology
    >>> from topdp.plan import Schedule
    >>> from topdp.protocols import TopSynchronous
    >>> steps = Schedule(rate=np.full(10, 0.1), noise=np.full(10, 0.1))
    >>> plan = TopSynchronous(0.5).plan(topology.ring(6), steps, np.full(6, 5.0), seed=0)
    >>> outsider(plan, exposure(6, sensitivity=1.0)).worst().round(2).tolist()
    [1.17, 1.17, 1.17, 1.17, 1.17, 1.17]
    """
    check(plan, exposure)
    _expect_seen_if_rounded("outsider", plan)
    return _seen_by(plan, exposure, Public.LINKS, [()], progress, patient)


def leading_adaptive(
    plan: Plan, exposure: Exposure, owner: int, last: Sequence[int], colluders: int = 1, patient: bool = False
) -> tuple[Floats, Floats]:
    """[len(last)]: the sound μ of `owner` to the worst coalition, if its data enter up to round `last`.

    There Poisson samples count as if the record were in every round. For them, [releases]: 1/z² of each
    release at unit sensitivity, to whom learns most of it and sees all of its rows.
    """
    check(plan, exposure)
    expect_colluders(colluders, plan.agents)
    _expect_seen_if_rounded("adaptive", plan, colluders)
    public = Public.ESTIMATES
    if _shares_noise_in_the_open(plan, public):
        return _leading_by_coalitions(plan, exposure, owner, last, colluders, patient)
    coalitions = [J for J in _coalitions(plan, public, colluders, patient) if owner not in J]
    per_release = information(plan)[:, owner]
    if not _all_seen(plan, public, coalitions):
        expect_bearable(plan, patient, len(coalitions), public, owners=1)
        return leading_view(plan, exposure, owner, last, coalitions, public), per_release
    period, sensitivity = int(exposure.periods()[owner]), float(exposure.sensitivity[owner])
    mu = np.array([every_round(per_release[: r + 1], period) for r in last]) * sensitivity
    return mu, per_release


def has_short_form(answer: str, plan: Plan, colluders: int = 1) -> bool:
    """Whether `adaptive` or `outsider` answers at once: nothing is hidden from those who look."""
    if not plan.std.values.any():
        return True
    if answer == "outsider":
        return _all_seen(plan, Public.LINKS, [()])
    if _all_seen(plan, Public.ESTIMATES, [()]):
        return True
    few = math.comb(plan.agents, colluders) <= plan.agents
    return few and _all_seen(
        plan, Public.ESTIMATES, list(itertools.combinations(range(plan.agents), colluders))
    )


def in_the_open(plan: Plan) -> bool:
    """Whether draws are shared and every row is an estimate: then no round depends on another's noise."""
    return _shares_noise_in_the_open(plan, Public.ESTIMATES)


def most_learned(plan: Plan, colluders: int = 1, patient: bool = False) -> Floats:
    """[releases, agents]: 1/z² of each release to the coalition that learns most of it, at sensitivity 1.

    For plans that are `in_the_open`, where releases compose. A row that is missing, or is mixed of others
    than the plan says, makes nobody learn more: rows are sums of rows that were seen, and of fresh noise.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.ones(2), noise=np.ones(2))
    >>> protocol = topdp.protocols.Correlated(secrets="all", pair_noise=3.0, gossip=1)
    >>> plan = protocol.plan(topdp.topology.ring(4), schedule, np.ones(4), seed=0)
    >>> most_learned(plan)[:, 0].round(3).tolist()  # 1/3 of one's own noise, and a little
    [0.357, 0.0, 0.357, 0.0]
    """
    expect_colluders(colluders, plan.agents)
    return _each_release(*_units(plan, colluders, patient))


def expect_colluders(colluders: int, agents: int) -> None:
    """Refuses more colluders than leave somebody to protect."""
    if isinstance(colluders, bool) or not isinstance(colluders, int) or not 0 <= colluders < agents:
        raise PrivacyError(
            f"Expected privacy.colluders from 0 to {agents - 1}, since there are {agents} agents, got "
            f"{colluders!r}."
        )


def _expect_seen_if_rounded(answer: str, plan: Plan, colluders: int = 1) -> None:
    """Refuses plans whose rows are rounded unless all of them are seen by everybody who is asked about."""
    if plan.rounded is not None and not has_short_form(answer, plan, colluders):
        expect_sums(plan)


def _coalitions(plan: Plan, public: Public, colluders: int, patient: bool) -> list[Coalition]:
    """All of them; or one around each agent where all coalitions learn the same."""
    n, possible = plan.agents, math.comb(plan.agents, colluders)
    if possible > n and all_draws_count(plan) and _all_seen(plan, public, [()]):
        return [tuple(sorted((first + k) % n for k in range(colluders))) for first in range(n)]
    if possible > COALITIONS and not patient:
        raise NotCovered(
            f"{colluders} of {n} agents can collude in {possible} ways, which are not all looked at unasked. "
            "Take fewer colluders, guarantee='worst-case', which covers any number, or "
            "privacy.allow_slow=true."
        )
    return list(itertools.combinations(range(n), colluders))


def _nearby(
    plan: Plan,
    exposure: Exposure,
    colluders: int,
    progress: Progress | None,
    patient: bool,
    bound: Bound,
) -> View | None:
    """A bound by neighbourhoods, where to look at every coalition would take far too long; else None."""
    possible = math.comb(plan.agents, colluders)
    few = possible <= COALITIONS and look_work(plan, possible) <= LIMIT
    if few or not plan.std.values.any() or _all_seen(plan, Public.ESTIMATES, [()]):
        return None
    if patient and look_work(plan, possible) <= PATIENCE:
        return None
    try:
        ways = Ways(plan)
        found = bounded_nearby(
            ways, exposure, colluders, progress=progress, room=affordable(ways, colluders, patient)
        )
    except UnsuitedError:
        return None
    # Where noise is sought, the bound itself is what is asked of it.
    if bound != "aligned" or found.upper is None:
        return found
    return replace(found, lower=found.upper, upper=None)


def _seen_by(
    plan: Plan,
    exposure: Exposure,
    public: Public,
    coalitions: list[Coalition],
    progress: Progress | None,
    patient: bool,
    bound: Bound = "upper",
) -> View:
    noiseless = not plan.std.values.any()  # then estimates tell all, whoever reads what
    if not noiseless and not _all_seen(plan, public, coalitions):
        if public is Public.ESTIMATES:
            try:
                return closely(Ways(plan), exposure, coalitions, bound, progress)
            except UnsuitedError:
                pass
        expect_bearable(plan, patient, len(coalitions), public)
        widest = None if patient else WIDEST
        return view(plan, exposure, coalitions, "all", bound, progress, widest, public)
    if not all_draws_count(plan):
        return _looked_at(plan, exposure, releases(plan), coalitions)
    # All noise is its owner's own: everybody learns the same.
    per_release, periods = information(plan), exposure.periods()
    each = np.array([every_round(per_release[:, i], periods[i]) for i in range(plan.agents)])
    mu = np.repeat((each * exposure.sensitivity)[:, None], len(coalitions), axis=1)
    for o, J in enumerate(coalitions):
        mu[list(J), o] = np.nan
        if progress is not None:
            progress("accounting", o + 1, len(coalitions), unit="observer")
    return View(tuple(coalitions), mu, mu, ~np.isnan(mu), amplified(exposure, per_release))


def _by_coalitions(plan: Plan, exposure: Exposure, colluders: int, patient: bool) -> View:
    """Where draws are shared and every row is seen: the short form, coalition by coalition."""
    found = releases(plan)
    coalitions = looked_at(plan, found, colluders, patient)
    if coalitions is not None:
        return _looked_at(plan, exposure, found, coalitions)
    units = _bounded(plan, found, colluders)
    note = (
        f"The {math.comb(plan.agents, colluders)} coalitions of {colluders} agents are bounded at once, by "
        "how well secrets are connected; privacy.allow_slow=true looks at each, and asks for less noise."
    )
    return replace(_composed(plan, exposure, found, [()], units), note=note)


def _looked_at(plan: Plan, exposure: Exposure, found: Releases, coalitions: list[Coalition]) -> View:
    return _composed(plan, exposure, found, coalitions, information_of(plan, found, coalitions))


def _bounded(plan: Plan, found: Releases, colluders: int) -> Floats:
    units = bounded(plan, found, colluders)
    if units is None:
        raise NotCovered(
            f"{colluders} of {plan.agents} agents can collude in {math.comb(plan.agents, colluders)} ways, "
            "which are not all looked at unasked, and the secrets are connected too weakly for a bound. Take "
            'a larger secrets_degree, secrets = "all", fewer colluders, or privacy.allow_slow=true.'
        )
    return units


def _composed(
    plan: Plan, exposure: Exposure, found: Releases, coalitions: list[Coalition], units: Floats
) -> View:
    """μ of every owner and coalition, from 1/z² of each kind of release [kinds, coalitions, agents]."""
    mu = np.zeros((plan.agents, len(coalitions)))
    alone = information(plan)  # nobody learns more than all others together
    for i, period in enumerate(exposure.periods().tolist()):
        most = every_round(alone[:, i], period)
        mu[i] = np.minimum(_every_round(found, units[:, :, i], period), most) * exposure.sensitivity[i]
    for o, J in enumerate(coalitions):
        mu[list(J), o] = np.nan
    return View(tuple(coalitions), mu, mu, ~np.isnan(mu), amplified(exposure, _each_release(found, units)))


def _each_release(found: Releases, units: Floats) -> Floats:
    """[releases, agents]: 1/z² at unit sensitivity, to the coalition that learns most of each release."""
    largest = np.concatenate([units.max(axis=1), np.zeros((1, units.shape[2]))])  # the last: carries nothing
    with np.errstate(invalid="ignore"):
        return np.where(largest[found.which] > 0, largest[found.which] * found.ratio[:, None], 0.0)


def _every_round(found: Releases, units: Floats, period: int, last: int | None = None) -> Floats:
    """[coalitions]: μ at unit sensitivity of a record in all its rounds; units [kinds, coalitions]."""
    stop = len(found.which) if last is None else last + 1
    worst = np.zeros(units.shape[1])
    for s in range(min(period, stop)):
        which, ratio = found.which[s:stop:period], found.ratio[s:stop:period]
        total = np.zeros(units.shape[1])
        for kind in range(len(found.kinds)):
            weight = float(ratio[which == kind].sum())
            with np.errstate(invalid="ignore"):
                total += np.where((units[kind] > 0) & (weight > 0), units[kind] * weight, 0.0)
        worst = np.maximum(worst, total)
    # μ² = Σ_r 1/z_r² over the rounds that use the record; arXiv:1905.02383, Corollary 3.3
    return np.sqrt(worst) * (1 + 1e-14)


def _leading_by_coalitions(
    plan: Plan, exposure: Exposure, owner: int, last: Sequence[int], colluders: int, patient: bool
) -> tuple[Floats, Floats]:
    found, units = _units(plan, colluders, patient)
    period, sensitivity = int(exposure.periods()[owner]), float(exposure.sensitivity[owner])
    worst = [_every_round(found, units[:, :, owner], period, r).max(initial=0.0) for r in last]
    return np.array(worst) * sensitivity, _each_release(found, units)[:, owner]


def _units(plan: Plan, colluders: int, patient: bool) -> tuple[Releases, Floats]:
    """1/z² of each kind of release [kinds, coalitions, agents]; 0 of a coalition's own members."""
    found = releases(plan)
    coalitions = looked_at(plan, found, colluders, patient)
    if coalitions is None:
        return found, _bounded(plan, found, colluders)
    return found, information_of(plan, found, coalitions)


def _shares_noise_in_the_open(plan: Plan, public: Public) -> bool:
    """Every row is seen by everybody, and not all noise is its owner's own."""
    noisy = bool(plan.std.values.any())
    return noisy and not all_draws_count(plan) and _all_seen(plan, public, [()])


def _all_seen(plan: Plan, public: Public, coalitions: Sequence[Coalition]) -> bool:
    """Whether each of them sees every row that is made."""
    if plan.robust is not None:  # what is mixed by no linear rule has no other account
        return True
    others = plan.exists & ~plan.memories  # who sees all estimates knows what follows from them
    if public is not Public.NOTHING and not others[:, plan.agents :].any():
        return True
    return all((seen_rows(plan, _marked(plan, J), public) == plan.exists).all() for J in coalitions)


def _marked(plan: Plan, coalition: Coalition) -> Bools:
    return np.isin(np.arange(plan.agents), coalition)
