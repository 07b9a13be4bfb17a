"""Checks after every schedule: nothing is under-counted or done twice, budgets hold, and estimates agree.

They extend the checker of histories: they also know ledgers that were replaced by an old copy, and what an
unbroken run of the same job sends and ends with.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import history
import torch

from topdp.agents.ledger.ledger import Ledger

SLACK = 1e-9


def wrong(injector) -> list[str]:
    """All faults of a run after all agents have ended."""
    job = injector.job
    made = job.made
    run = SimpleNamespace(federation=made, wire=injector.network, lost=injector.lost, starts=injector.starts)
    found = history.faults(run)
    found += [f"{name} fell over {what}" for name, what in injector.network.unanswered]
    for number, name in enumerate(job.names):
        if not made.state(number).exists():
            continue
        with contextlib.closing(Ledger(made.state(number), writable=False)) as ledger:
            found += _of_one(injector, number, name, ledger)
    if job.job.follows_plan and not injector.gone:
        found += _not_as_unbroken(injector)
    return found


def _of_one(injector, number, name, ledger):
    budget = injector.job.budget(number)
    entries = [
        entry for entry in ledger.entries() if entry.kind == "release" or not _excused(injector, ledger)
    ]
    over = [entry for entry in entries if not entry.total <= budget * (1 + SLACK)]
    if over:
        yield f"{name} has charged {over[0].total:.6g} by round {over[0].round}, its budget is {budget:.6g}"
    outcome = injector.outcomes.get(name)
    if outcome is not None:
        if ledger.round + 1 < injector.job.made.setup.plan.releases:
            yield f"{name} says it has finished, and has done {ledger.round + 1} releases"
        skipped_most = outcome.result["skipped"] > outcome.result["made"]
        if outcome.code != 4 if skipped_most else outcome.code != (0 if ledger.stopped_at is None else 3):
            yield f"{name} ended with {int(outcome.code)}, its budget stopped it at {ledger.stopped_at}"
    if not injector.lost:
        quarantined = ledger.database.rows("SELECT name, quarantined FROM peers WHERE quarantined NOT NULL")
        for peer, words in quarantined:
            yield f"{name} has quarantined {peer}, which is honest: {words}"


def _excused(injector, ledger):
    """Whether the ledger may exceed the budget because the cost of earlier releases was found late.

    `view` relies on a plan that is followed, and keeps no reserve; with pair noise the reserve covers the
    departures that the manifest states. In no case do data enter a further round.
    """
    manifest = injector.federation.setup.manifest
    gone = len(ledger.departed_members())
    too_many = gone > getattr(manifest.rules, "departures", 0)
    by_view = manifest.config.privacy.guarantee in ("view", "claimed") and ledger.departed is not None
    return by_view or too_many


def _not_as_unbroken(injector):
    """If the plan is followed in any case, no agent departs, and seeded runs are equal bit by bit."""
    for name, outcome in injector.outcomes.items():
        if outcome.result["departed"] is not None:
            yield f"{name} has departed from the plan: {outcome.result['departed']}"
    if not injector.schedule.seeded or injector.schedule.seed.endswith("unbroken"):
        return
    faults, estimates, digests = reference(injector.job.job.name)
    if faults:
        yield f"an unbroken run went wrong: {faults[0]}"
        return
    if not torch.equal(injector.federation.estimates(), estimates):
        worst = float((injector.federation.estimates() - estimates).abs().max())
        yield f"estimates differ from those of an unbroken run by {worst:.3g}"
    for key, sent in sorted(sent_by(injector.network.events).items()):
        if sent != digests.get(key, sent):  # a neighbour that needs nothing more is sent nothing
            yield f"{key[0]} sent {key[1]} other bytes in round {key[2]} than in an unbroken run"


def sent_by(events):
    """The digests of rows by (sender, receiver, round)."""
    found = defaultdict(set)
    for event in events:
        if event.what == "sent" and event.kind == "row":
            found[event.sender, event.receiver, event.round].add(event.digest)
    return dict(found)


@cache
def reference(name):
    """(faults, estimates, digests) of an unbroken run of the job, with the estimates of the simulator."""
    from faults import injector
    from faults.clock import FaultyLoop, end_all
    from faults.jobs import prepared

    job = prepared(name, Path("/nowhere"))
    with tempfile.TemporaryDirectory(prefix="faults-", dir=injector.MEMORY) as folder, injector.quick():
        loop = FaultyLoop()
        run = injector.Injector(
            job.in_folder(Path(folder)), injector.unbroken(name), loop, lambda words: None
        )
        loop.run_until_complete(run.run())
        if faults := [*run.faults, *wrong(run)]:
            return faults, None, None
        estimates = run.federation.estimates()
        if not job.job.budgets:  # the simulator knows only the budgets of the manifest
            # Adam divides by roots that may be small, which enlarges the rounding of the simulator's float32.
            atol = 1e-4 if name == "adam" else 1e-6
            torch.testing.assert_close(
                estimates, run.federation.simulated(), rtol=10 * atol, atol=atol, check_dtype=False
            )
        loop.run_until_complete(end_all(run.processes))
        loop.close()
    return [], estimates, sent_by(run.network.events)
