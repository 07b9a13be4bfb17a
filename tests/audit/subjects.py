"""Small runs to audit: every method and mode, with a network of a few hundred parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from builders import SETTINGS, blobs
from topdp import topology
from topdp.audit import Audit, AuditRequest, Findings
from topdp.learning.tasks import Task
from topdp.plan import Plan
from topdp.privacy.accounting import Account
from topdp.runs.assembly import Assembly
from topdp.runs.config import RunConfig, parse
from topdp.runs.planning import plan_and_account
from topdp.runs.run_outline import RunOutline
from topdp.simulator.simulated_noise import Draws


def network(hidden: int = 20) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(16, hidden), torch.nn.Tanh(), torch.nn.Linear(hidden, 3)
        )


def settings(agents: int, rounds: int, **sections: dict[str, Any]) -> RunConfig:
    tree: dict[str, Any] = {
        "noise_seed": 0,
        "rounds": rounds,
        "topology": {"kind": "ring", "agents": agents},
        **sections,
    }
    tree["privacy"] = {"epsilon": 4.0, "clip": 1.0, **sections.get("privacy", {})}
    return parse(tree)


def subject(
    agents: int = 4, rounds: int = 6, records: int = 160, hidden: int = 20, **sections: dict[str, Any]
) -> tuple[Assembly, Plan, Account]:
    """The inputs of an audit; `sections` change those of the configuration."""
    config = settings(agents, rounds, **sections)
    outline = RunOutline.of(config, topology.ring(agents))
    shards, device = blobs(agents, records), torch.device("cpu")
    parts = Assembly.given(outline, network(hidden), shards, device, Task.of(config.train.loss, None))
    return parts, *plan_and_account(parts.run)


@dataclass(frozen=True)
class Audited:
    """An audit and the run that it attacks."""

    audit: Audit
    parts: Assembly

    @classmethod
    def of(cls, asked: AuditRequest | None = None, **options: Any) -> Audited:
        return cls.given(asked or AuditRequest(), *subject(**options))

    @classmethod
    def given(cls, asked: AuditRequest, parts: Assembly, plan: Plan, found: Account) -> Audited:
        return cls(Audit.of(plan, found, parts.run.config.privacy, parts.flat.dimension, asked), parts)

    @property
    def plan(self) -> Plan:
        return self.audit.observer.plan

    @property
    def proved(self) -> float:
        return self.audit.loss.epsilon(self.audit.delta)

    def run(self, seed: int, noise: Draws | None = None) -> Findings:
        return self.audit.run(self.parts, seed, noise)


def sections(protocol: str) -> dict[str, Any]:
    """The sections of a configuration that run a protocol."""
    words = dict(change.removeprefix("method.").split("=") for change in SETTINGS[protocol])
    return {"method": {"name": words["name"], "mode": words["mode"], "alpha": 0.25, "offline": 0.0}}
