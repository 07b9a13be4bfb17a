"""The small federations that the injector runs, with different methods, graphs, rules and budgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial

import history
import torch
from history import Federation

from topdp import topology
from topdp.agents.development.development_hooks import DevelopmentHooks
from topdp.agents.runtime.agent import Agent


@dataclass(frozen=True)
class Job:
    """One setting. `make` builds its federation in a folder.

    `follows_plan`: whatever faults occur, a seeded run sends and ends with the same as an unbroken one.
    """

    name: str
    make: Callable[..., Federation]
    tolerates_silence: bool = False
    live_pairing: bool = False
    shares_draws: bool = False
    budgets: dict[int, float] = field(default_factory=dict)

    @property
    def follows_plan(self):
        return not (self.tolerates_silence or self.live_pairing)


def _job(name, *changes, sharing=False, live_pairing=False, budgets=None, tolerates_silence=False, **how):
    make = partial(
        history.sharing if sharing else history.federation, tolerates_silence=tolerates_silence, **how
    )
    return Job(
        name,
        lambda folder: make(folder, *changes),
        tolerates_silence,
        live_pairing,
        sharing,
        dict(budgets or {}),
    )


ADAM = ("method.name=muffliato", "method.gossip=2", "train.optimiser=adam", "train.learning_rate=0.05")

JOBS = {
    job.name: job
    for job in (
        _job("sync-wait", graph=topology.ring(4), rounds=6),
        _job("sync-go-on", graph=topology.complete(4), rounds=7, tolerates_silence=True),
        _job(
            "cyclic", "data.batch={cycle=7}", "method.name=plain", graph=topology.random(5, 0.5, 1), rounds=6
        ),
        _job("view-full", "privacy.epsilon=1.0", graph=topology.ring(6), rounds=5, guarantee="view"),
        _job("async", "method.mode=async", graph=topology.random(6, 0.5, 1), rounds=6),
        _job(
            "async-go-on", "method.mode=async", graph=topology.complete(4), rounds=8, tolerates_silence=True
        ),
        _job(
            "live",
            "method.mode=async",
            "method.name=plain",
            graph=topology.complete(5),
            rounds=6,
            live_pairing=True,
        ),
        _job("shared-wait", sharing=True, graph=topology.ring(4), rounds=5),
        _job("shared-go-on", sharing=True, graph=topology.complete(5), rounds=6, tolerates_silence=True),
        _job("unequal", graph=topology.star(4), rounds=6, budgets={1: 20.0}),
        _job("adam", *ADAM, "train.average=0.5", graph=topology.complete(3), rounds=4),
        _job(
            "momentum-async",
            "method.mode=async",
            "train.optimiser=momentum",
            graph=topology.ring(3),
            rounds=6,
        ),
    )
}


class Prepared:
    """A job whose agents start many times; what they compute with is built once."""

    def __init__(self, job, folder):
        self.job = job
        self.made = job.make(folder)
        self.names = self.made.names
        self.idle_timeout = self.made.setup.manifest.rules.idle_timeout
        self._equipment = {
            i: self.made.context(i, epsilon=job.budgets.get(i)) for i in range(len(self.names))
        }

    def in_folder(self, folder):
        """The same federation with other state folders."""
        found = object.__new__(Prepared)
        found.__dict__.update(self.__dict__)
        found.made = replace(self.made, folder=folder)
        return found

    def budget(self, number):
        return self._equipment[number].epsilon

    def agent(self, number, transport, failpoints, seeded):
        mine, made = self._equipment[number], self.made
        hooks = DevelopmentHooks(seeded=seeded, failpoints=failpoints)
        draws = hooks.draws(mine.part, mine.manifest.config.seed, torch.float32)
        mine = replace(mine, hooks=hooks, draws=draws, gradients=_with(mine.gradients, draws, hooks))
        return Agent(
            mine,
            made.state(number),
            transport=transport,
            live_pairing=self.job.live_pairing,
            private=made.private(number),
        )


def _with(gradients, draws, hooks):
    copy = object.__new__(type(gradients))
    copy.__dict__.update(gradients.__dict__, draws=draws, hooks=hooks)
    return copy


@cache
def prepared(name, folder):
    return Prepared(JOBS[name], folder)
