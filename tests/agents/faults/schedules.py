"""Schedules of faults, drawn from one seed before anything runs, so that they can be printed and repeated.

Times are virtual seconds. Everything heals: after `heals_at` nothing is lost, cut, stopped or full, and every
killed agent is back.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from topdp.agents.development import development_hooks

SPAN = 10.0  # seconds in which faults begin; a run without any takes about as long


@dataclass(frozen=True)
class Kill:
    """The end of one start of an agent by SIGKILL: at a failpoint, at a step of its loop, or at a time."""

    place: str = ""  # of a failpoint, such as after_ledger:2
    step: int = 0
    after: float = 0.0  # seconds from its start
    back_after: float = 1.0
    old_copy: bool = False  # it starts again with an old copy of its state folder
    whole_disk: bool = False  # and with one of its identity folder, which contains marks and run keys


@dataclass
class Schedule:
    """All faults of one run."""

    seed: str
    seeded: bool = True  # noise of the simulator
    delay: float = 0.1  # the largest delay of a message between agents that are not slow
    in_order: bool = True  # all messages from one agent to another, requests and replies alike
    loses: float = 0.0
    repeats: float = 0.0
    cuts: list[tuple[float, float, str, str]] = field(default_factory=list)  # from, until, sender, receiver
    kills: dict[str, list[Kill]] = field(default_factory=dict)  # one for each of the first starts
    ends: list[tuple[float, str]] = field(default_factory=list)  # SIGTERM, then started again
    stops: list[tuple[float, float, str]] = field(default_factory=list)  # SIGSTOP at, for
    jumps: list[tuple[float, float, str]] = field(default_factory=list)  # the clock, at, by
    full: list[tuple[float, float, str, str]] = field(default_factory=list)  # disk, at, for, statement
    copies: list[tuple[float, str]] = field(default_factory=list)  # of state folders, which may be put back
    slow: dict[str, float] = field(default_factory=dict)

    @property
    def heals_at(self):
        cuts = [until for _, until, _, _ in self.cuts]
        others = [at + span for at, span, *_ in [*self.stops, *self.full]]
        return max([SPAN, *cuts, *others])

    @property
    def rolls_back(self):
        return any(kill.old_copy for kills in self.kills.values() for kill in kills)

    def slowness(self, name):
        return self.slow.get(name, 1.0)

    def is_cut(self, sender, receiver, now):
        return any(a <= now < b and (s, r) == (sender, receiver) for a, b, s, r in self.cuts)

    def told(self):
        """The lines of a description."""
        noise = "the simulator's noise" if self.seeded else "real noise"
        order = "in order" if self.in_order else "replies in any order"
        yield f"schedule {self.seed}: {noise}, heals at {self.heals_at:.1f}"
        yield f"  messages take up to {self.delay:.2f} s, {order}"
        yield f"  {self.loses:.0%} of messages lost, {self.repeats:.0%} repeated"
        yield from (f"  {name} is {factor:g} times slower" for name, factor in self.slow.items())
        yield from (f"  cut from {a:.2f} to {b:.2f}: {s} -> {r}" for a, b, s, r in self.cuts)
        yield from (f"  {name}: {kill}" for name, kills in self.kills.items() for kill in kills)
        yield from (f"  {name} is asked to end at {at:.2f}" for at, name in self.ends)
        yield from (f"  {name} is stopped at {at:.2f} for {span:.2f}" for at, span, name in self.stops)
        yield from (f"  the clock of {name} jumps at {at:.2f} by {by:.2f}" for at, by, name in self.jumps)
        yield from (f"  the disk of {n} is full at {at:.2f} for {s:.2f}: {k}" for at, s, n, k in self.full)
        yield from (f"  the folder of {name} is copied at {at:.2f}" for at, name in self.copies)


def drawn(job, names, links, idle_timeout, seed) -> Schedule:
    """The schedule of one seed. `links`: pairs of neighbours."""
    chance = random.Random(f"{job.name} {seed}")
    found = Schedule(f"{job.name} {seed}", seeded=chance.random() < 0.5)
    found.delay = chance.choice([0.02, 0.1, 0.3, 0.8])
    found.in_order = chance.random() < 0.6
    if chance.random() < 0.6:
        found.loses = chance.choice([0.02, 0.1, 0.3])
    if chance.random() < 0.5:
        found.repeats = chance.choice([0.05, 0.3])
    if chance.random() < 0.3:
        found.slow = {chance.choice(names): chance.choice([5.0, 20.0])}
    # some shorter than the idle timeout, some long enough that others continue without the agent
    spans = (0.3 * idle_timeout, 1.2 * idle_timeout, 4 * idle_timeout)

    def when():
        return chance.uniform(0, SPAN) * found.delay**0.3

    def span():
        return chance.uniform(0.05, 1) * chance.choice(spans)

    for _ in range(chance.choice([0, 0, 1, 2])):
        _cut(found, chance, names, links, when(), span())
    _kills(found, chance, job, names, span)
    for _ in range(chance.choice([0, 0, 0, 1, 2])):
        found.ends.append((when(), chance.choice(names)))
    for _ in range(chance.choice([0, 0, 1, 2])):
        found.stops.append((when(), span(), chance.choice(names)))
    for _ in range(chance.choice([0, 0, 1, 2])):
        found.jumps.append((when(), chance.choice([-1, 1, 1]) * span(), chance.choice(names)))
    for _ in range(chance.choice([0, 0, 0, 1])):
        found.full.append((when(), span(), chance.choice(names), chance.choice(["insert", "commit"])))
    if chance.random() < 0.12:
        name = chance.choice(names)
        found.copies = sorted((when(), name) for _ in range(3))
        whole = chance.random() < 0.5
        found.kills[name] = [Kill(after=when() + 0.5, back_after=span(), old_copy=True, whole_disk=whole)]
    return found


def _cut(found, chance, names, links, begin, span):
    """Cuts one link, all of one agent, or those between two halves; every third case in one direction."""
    kind = chance.choice(["link", "agent", "halves"])
    if kind == "link":
        cut = [chance.choice(links)]
    else:
        few = [chance.choice(names)] if kind == "agent" else chance.sample(names, len(names) // 2)
        cut = [(a, b) for a, b in links if (a in few) != (b in few)]
        if not cut:
            return
    if chance.random() < 0.33:
        ways = [(b, a) if chance.random() < 0.5 else (a, b) for a, b in cut]
    else:
        ways = [way for a, b in cut for way in ((a, b), (b, a))]
    found.cuts += [(begin, begin + span, a, b) for a, b in ways]


def _kills(found, chance, job, names, span):
    places = [*development_hooks.ROUND_POINTS]
    if job.live_pairing:
        places = [*development_hooks.PAIRING_POINTS, "before_ledger", "in_ledger", "after_ledger"]
    if job.shares_draws:
        places += development_hooks.SHARING_POINTS
    for _ in range(chance.choice([0, 1, 1, 2, 3, 5])):
        back = chance.choice([0.1, span()])
        kind = chance.choice(["place", "place", "step", "moment"])
        if kind == "place":
            kill = Kill(place=f"{chance.choice(places)}:{chance.randint(1, 8)}", back_after=back)
        elif kind == "step":
            kill = Kill(step=int(10 ** chance.uniform(0.5, 3.2)), back_after=back)
        else:
            kill = Kill(after=0.01 + chance.uniform(0, SPAN) * found.delay**0.3, back_after=back)
        found.kills.setdefault(chance.choice(names), []).append(kill)
