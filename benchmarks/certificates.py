"""Search for plans whose printed ε is smaller than the true ε, with deviations that span 16 decades.

    python benchmarks/certificates.py --plans 5000 --seed 0

Each plan has 3 to 6 agents, few rounds, a random graph, protocol, optimiser and adjacency, and 0 to 2
colluders. Four of five plans are drawn at random; the others are near a plan that once lost all digits. The
answers `adaptive`, `view` and `outsider` are compared with the truth, for some observers of each plan. The
truth is computed anew, from the definition in docs/privacy.md, with 200 digits: O = A u + B z, M =
Aᵀ(BBᵀ)⁺A by elimination, and the best u that an iteration finds. It shares no code with `topdp.privacy`.

**Guarantees.** An ε counts as too small if it is below the ε of some record, by a relative 1e-12 or more.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
import warnings
from collections import Counter
from typing import Any, NamedTuple

import flint
import numpy as np
from numpy.typing import NDArray

import topdp
from topdp import topology
from topdp.plan import Cycle, Full, Optimiser, Plan, Schedule, optimised, schedules
from topdp.privacy import adaptive, exposure, outsider, view, worst_case
from topdp.privacy.basics.gaussian import epsilon_of
from topdp.privacy.basics.refusals import PrivacyError
from topdp.privacy.query import Query
from topdp.protocols import (
    Correlated,
    Dsgd,
    Muffliato,
    PlainAsynchronous,
    PlainSynchronous,
    Protocol,
    TopAsynchronous,
    TopSynchronous,
)

DIGITS = 200
TOLERANCE = 1e-12
NOTHING_LEFT = flint.arb(10) ** -140  # the share of a row's variance below which the row is no news
DELTA = 1e-5
SEARCH_STEPS = 60

Floats = NDArray[np.float64]


class Case(NamedTuple):
    """A plan and the settings of its accounts."""

    name: str
    plan: Plan
    colluders: int
    period: int
    replace_one: bool


def sight(plan: Plan, members: tuple[int, ...], public: str) -> dict[int, Floats | None]:
    """Return what `members` learn about every other agent: D with M = DᵀD, or None if it is infinite.

    `public`: what they can read in addition: "nothing", "estimates" or "links".
    """
    owners = [i for i in range(plan.agents) if i not in members]
    R = plan.releases
    seen = [_seen(plan, r, members, public) for r in range(R)]
    known = [d for d in range(plan.draws) if set(plan.known_by[d].tolist()) & set(members)]
    names = {owner: place for place, owner in enumerate(owners)}
    before: dict[int, dict[Any, Any]] = {}
    visible: list[dict[Any, Any]] = []
    for r in range(R):
        this = plan[r]
        mine = {int(d) for a in range(plan.rows) if plan.owner[a] in members for d in this.draw[a] if d >= 0}
        rows: dict[int, dict[Any, Any]] = {}
        for a in range(plan.rows):
            if not this.exists[a]:
                continue
            row: dict[Any, Any] = {}
            for b, w in zip(this.source[a].tolist(), this.weight[a].tolist(), strict=True):
                for key, value in before.get(b, {}).items() if w else ():
                    row[key] = row.get(key, 0) + flint.arb(w) * value
            if int(plan.owner[a]) in names and this.step[a]:
                key = "u", names[int(plan.owner[a])], r
                row[key] = row.get(key, 0) + flint.arb(float(this.step[a]))
            for d, std in zip(this.draw[a].tolist(), this.std[a].tolist(), strict=True):
                if d >= 0 and std and d not in known and d not in mine:
                    row["z", d, r] = row.get(("z", d, r), 0) + flint.arb(std)
            rows[a] = row
        visible += [rows[a] for a in sorted(rows) if seen[r][a]]
        before = rows
    return _eliminated(visible, owners, R)


def _seen(plan: Plan, r: int, members: tuple[int, ...], public: str) -> list[bool]:
    this = plan[r]
    after = plan[r + 1] if r + 1 < plan.releases else None
    result = []
    for a in range(plan.rows):
        readers = {int(j) for j in this.readers[a] if j >= 0}
        sees = bool(readers & set(members)) or int(plan.owner[a]) in members
        sees |= public != "nothing" and (a < plan.agents or bool(plan.memories[a]))
        sees |= public == "links" and bool(readers)
        if after is not None:  # who makes a row knows what it is made of
            for b in np.flatnonzero(np.isin(plan.owner, members) & after.exists):
                sees |= a in after.source[b][after.weight[b] != 0]
        result.append(sees)
    return result


def _eliminated(visible: list[dict[Any, Any]], owners: list[int], R: int) -> dict[int, Floats | None]:
    """Return D of each owner by elimination: each row minus what the rows before it explain."""
    draws = {key: c for c, key in enumerate(sorted({k for row in visible for k in row if k[0] == "z"}))}
    n, columns = len(visible), len(owners) * R
    B, A = flint.arb_mat(n, max(1, len(draws))), flint.arb_mat(n, columns)
    for a, row in enumerate(visible):
        for key, value in row.items():
            if key[0] == "z":
                B[a, draws[key]] = value
            else:
                A[a, key[1] * R + key[2]] = value
    # C[a] has the entries of row a from column a on.
    C = [list(map(_middle, line[a:])) for a, line in enumerate((B * B.transpose()).tolist())]
    T = [list(map(_middle, line)) for line in A.tolist()]
    size = [C[a][0] for a in range(n)]
    most = [max((abs(s) for s in line), default=flint.arb(0)) for line in T]
    shifts: list[Floats] = []
    leaks = np.zeros(columns, bool)
    for a in range(n):
        left = C[a][0]
        if not left > NOTHING_LEFT * size[a]:
            leaks |= [bool(abs(s) > NOTHING_LEFT * (1 + most[a])) for s in T[a]]
            continue
        root = left.sqrt()
        shifts.append(np.array([float((s / root).mid()) for s in T[a]]))
        for b in range(a + 1, n):
            if C[a][b - a] != 0:
                share = _middle(C[a][b - a] / left)
                C[b] = [(x - share * y).mid() for x, y in zip(C[b], C[a][b - a :], strict=True)]
                T[b] = [(x - share * y).mid() if y else x for x, y in zip(T[b], T[a], strict=True)]
    D = np.array(shifts).reshape(len(shifts), columns)
    result: dict[int, Floats | None] = {}
    for place, owner in enumerate(owners):
        part = slice(place * R, (place + 1) * R)
        result[owner] = None if leaks[part].any() else D[:, part]
    return result


def _middle(value: Any) -> Any:
    return value.mid()


def reached(D: Floats | None, period: int) -> float:
    """Return μ of the best record that an iteration finds: a lower bound on the true μ."""
    if D is None:
        return np.inf
    largest = 0.0
    for start in range(min(period, D.shape[1])):
        part = D[:, start::period]
        scale = np.abs(part).max(initial=0.0)
        if scale == 0:
            continue
        M = (part / scale).T @ (part / scale)
        turns = np.outer(np.arange(1, len(M) + 1), np.sqrt([2.0, 3.0, 5.0, 7.0]))
        for u in (np.cos(turns) + 1.0, np.ones((len(M), 1)), np.where(M[:1].T < 0, -1.0, 1.0)):
            for _ in range(SEARCH_STEPS):
                u = u / np.maximum(np.linalg.norm(u, axis=1, keepdims=True), 1e-300)
                u, before = M @ u, u
            # Σ_rs M_rs <u_r, u_s> = |D u|², whose terms are all positive
            largest = max(largest, scale * float(np.linalg.norm(part / scale @ before)))
    return largest


def directed_case(generator: np.random.Generator) -> Case:
    """Return a plan near one whose μ was once 0.902 of the truth, in float64 without a bound on rounding."""
    rates = schedules.learning_rates(0.1, int(generator.integers(4, 11)), "cosine")
    near = np.array([7379.011, 0.0022517, 5.2542e-10, 0.0026515]) * 10 ** generator.uniform(-0.7, 0.7, 4)
    alpha = 0.00275523709831908 * 10 ** generator.uniform(-0.7, 0.7)
    protocol = TopSynchronous(alpha, float(generator.choice([0.05, 0.1, 0.3])))
    schedule = Schedule(rate=rates, noise=rates)
    plan = protocol.plan(topology.ring(4), schedule, near, int(generator.integers(1 << 30)))
    return Case("top directed", plan, int(generator.integers(2)), 1, False)


def random_case(generator: np.random.Generator) -> Case:
    """Return one plan of the search."""
    n = int(generator.integers(3, 7))
    rounds = int(generator.integers(1, 7 if n < 5 else 5))
    graph = _graph(generator, n)
    fading = str(generator.choice(["none", "linear", "cosine", "sqrt-epoch"]))
    rates = schedules.learning_rates(float(10 ** generator.uniform(-2, 0)), rounds, fading)
    decay = schedules.step_decay(float(generator.choice([1.0, 1.0, 0.9, 0.3])), 2, rounds)
    schedule = schedules.schedule(rates, decay, str(generator.choice(["gradient", "gradient", "estimate"])))
    name, protocol = _protocol(generator, n)
    plan = protocol.plan(graph, schedule, _deviations(generator, n), int(generator.integers(1 << 30)))
    kind = str(generator.choice(["sgd", "sgd", "sgd", "momentum", "average", "decay"]))
    if kind != "sgd":
        settings = {
            "momentum": Optimiser("momentum", momentum=float(generator.choice([0.5, 0.9]))),
            "average": Optimiser("sgd", average=0.9),
            "decay": Optimiser("sgd", weight_decay=0.05),
        }[kind]
        plan, name = optimised(plan, settings, schedule.rate), f"{name} {kind}"
    colluders = int(generator.integers(0, min(3, n - 1)))
    return Case(name, plan, colluders, int(generator.choice([1, 1, 2, 3])), bool(generator.integers(2)))


def _graph(generator: np.random.Generator, n: int) -> topology.Topology:
    kind = generator.integers(5)
    if kind == 0:
        return topology.ring(n)
    if kind == 1:
        return topology.complete(n)
    if kind == 2:
        return topology.star(n)
    if kind == 3:
        return topology.tree(n)
    return topology.random(n, 0.5, seed=int(generator.integers(1 << 20)))


def _deviations(generator: np.random.Generator, n: int) -> Floats:
    kind = generator.integers(6)
    if kind == 0:  # ordinary noise
        return generator.uniform(0.5, 2.0, n)
    if kind == 1:  # all decades
        return 10 ** generator.uniform(-10, 6, n)
    if kind == 2:  # one loud agent, one silent agent
        std = 10 ** generator.uniform(-3, -2, n)
        std[generator.permutation(n)[:2]] = 10 ** generator.uniform(2, 6), 10 ** generator.uniform(-10, -6)
        return std
    if kind == 3:  # one loud agent
        std = np.full(n, 1.0)
        std[generator.integers(n)] = 10 ** generator.uniform(1, 12)
        return std
    if kind == 4:  # one silent agent
        std = np.full(n, 1.0)
        std[generator.integers(n)] = 10 ** generator.uniform(-12, -1)
        return std
    return 10 ** (generator.uniform(0.5, 4) * np.arange(n)[generator.permutation(n)] - 8)


def _protocol(generator: np.random.Generator, n: int) -> tuple[str, Protocol]:
    alpha = float(generator.choice([0.5, 0.25, 0.75, 0.9999, 10 ** generator.uniform(-6, -0.1)]))
    share = float(generator.choice([1.0, 0.1, 0.01, 1e-4]))
    offline = float(generator.choice([0.0, 0.1, 0.4]))
    gossip = int(generator.integers(1, 4))
    choices: list[tuple[str, Protocol]] = [
        ("top", TopSynchronous(alpha, share)),
        ("top pairs", TopAsynchronous(alpha, offline, share)),
        ("plain", PlainSynchronous(alpha)),
        ("plain pairs", PlainAsynchronous(alpha, offline)),
        ("dsgd", Dsgd()),
        ("muffliato", Muffliato(gossip, bool(generator.integers(2)))),
        (
            "correlated",
            Correlated(
                secrets="all",
                pair_noise=float(10 ** generator.uniform(-4, 8)),
                gossip=gossip,
                chebyshev=bool(generator.integers(2)),
            ),
        ),
    ]
    weights = np.array([6, 2, 1, 1, 1, 1, 2], float)
    return choices[int(generator.choice(len(choices), p=weights / weights.sum()))]


def compared(case: Case, tally: Counter[str], most_coalitions: int) -> list[str]:
    """Return a line for each answer that is too small, and count the others in `tally`."""
    plan, n = case.plan, case.plan.agents
    batches = Cycle(10 * case.period, 10) if case.period > 1 else Full(10)
    exposed = exposure(n, 1.0, batches, "replace-one" if case.replace_one else "add-remove")
    ceiling = worst_case(plan, exposed).mu
    query = Query(colluders=case.colluders, allow_slow=True)
    wrong: list[str] = []
    coalitions = list(itertools.combinations(range(n), max(1, case.colluders)))[:most_coalitions]
    asked = {
        "adaptive": (lambda: adaptive(plan, exposed, query), "estimates"),
        "outsider": (lambda: outsider(plan, exposed), "links"),
        "view": (lambda: view(plan, exposed, coalitions, "all"), "nothing"),
    }
    for answer, (compute, public) in asked.items():
        try:
            found = compute()
        except PrivacyError:
            tally[f"{answer} refused"] += 1
            continue
        assert found.upper is not None
        for at, J in list(enumerate(found.observers))[:most_coalitions]:
            for i, D in sight(plan, J, public).items():
                mu, upper = reached(D, case.period), float(found.upper[i, at])
                tally[f"{answer} pairs"] += 1
                tally[f"{answer} pairs by worst case"] += upper >= ceiling[i] and mu < ceiling[i] * (1 - 1e-6)
                printed, true = epsilon_of(upper, DELTA), epsilon_of(mu, DELTA)
                if mu > upper * (1 + TOLERANCE) or true > printed * (1 + TOLERANCE):
                    wrong.append(f"{answer} {case.name}: owner {i}, observer {J}: {upper!r} < {mu!r}")
        tally[f"{answer} plans"] += 1
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--coalitions", type=int, default=2, help="how many observers of each plan are compared"
    )
    options = parser.parse_args()
    flint.ctx.dps = DIGITS
    warnings.simplefilter("ignore")
    tally: Counter[str] = Counter()
    began, failures = time.time(), 0
    for number in range(options.plans):
        generator = np.random.default_rng([options.seed, number])
        case = directed_case(generator) if number % 5 == 4 else random_case(generator)
        tally[f"plans of {case.name.split()[0]}"] += 1
        for line in compared(case, tally, options.coalitions):
            failures += 1
            print(f"too small: plan {number} of seed {options.seed}: {line}", flush=True)
        if (number + 1) % 100 == 0:
            print(f"{number + 1} plans, {time.time() - began:.0f} s, {failures} too small", flush=True)
    print(f"{options.plans} plans of topdp {topdp.__version__}: {failures} pairs too small")
    for name, count in sorted(tally.items()):
        print(f"  {name}: {count}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
