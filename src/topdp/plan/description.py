"""Descriptions of plans in words, for small graphs and for debugging."""

from __future__ import annotations

import numpy as np

from topdp.plan.plan import Plan


def describe(plan: Plan, rounds: range | None = None) -> str:
    """Return a description of `rounds` (default all) of `plan`, one line per row.

    The line `2→5 = 0.25·2 + 0.75·7→2 - 0.5·g2 + N(0.13) ⇒ 5` describes the message from agent 2 to agent 5.
    The message mixes the estimate of agent 2 and the previous message from agent 7 to agent 2. It carries the
    gradient of agent 2 with a step of 0.5, has noise of standard deviation 0.13, and is sent to agent 5.

    >>> import numpy as np
    >>> import topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(2, 0.5), noise=np.full(2, 0.5))
    >>> ring = topdp.topology.ring(3)
    >>> plan = topdp.protocols.PlainSynchronous(0.5).plan(ring, schedule, np.ones(3), seed=0)
    >>> print(describe(plan, range(1)))
    plain-sync: 3 agents, 3 rows, 2 releases
    round 0
      0 = 1·x0 - 0.5·g0 + N(0.5) ⇒ 1,2
      1 = 1·x0 - 0.5·g1 + N(0.5) ⇒ 0,2
      2 = 1·x0 - 0.5·g2 + N(0.5) ⇒ 0,1
    """
    names = _row_names(plan)
    lines = [f"{plan.protocol}: {plan.agents} agents, {plan.rows} rows, {plan.releases} releases"]
    if plan.robust is not None:
        lines.append(f"received rows are mixed by {plan.robust}")
    if plan.rounded is not None:
        lines.append(f"rows are rounded to {plan.rounded}")
    for r in rounds if rounds is not None else range(plan.releases):
        this = plan[r]
        lines.append(f"round {r}")
        if plan.adaptive is not None and plan.adaptive.rate[r]:
            lines.append(f"  every agent: {plan.adaptive.title}, steps of {plan.adaptive.rate[r]:.4g}")
            continue
        for m in np.flatnonzero(this.exists):
            terms = [
                f"{w:.4g}·{names[s] if r else 'x0'}"
                for s, w in zip(this.source[m], this.weight[m], strict=True)
                if s >= 0 and w
            ]
            line = f"  {names[m]} = " + " + ".join(terms)
            if this.step[m]:
                line += f" - {-this.step[m]:.4g}·g{plan.owner[m]}"
            for k, std in zip(this.draw[m], this.std[m], strict=True):
                if k >= 0 and std:
                    shared = [int(a) for a in plan.known_by[k] if a >= 0]
                    line += f" + N({std:.4g})" + (f"[draw {k}, known by {shared}]" if len(shared) > 1 else "")
            readers = [str(j) for j in this.readers[m] if j >= 0]
            lines.append(line + (f" ⇒ {','.join(readers)}" if readers else ""))
    return "\n".join(lines)


def _row_names(plan: Plan) -> list[str]:
    """Return the name of each row: its agent for an estimate; its owner and readers for a message."""
    names = [str(i) for i in range(plan.agents)]
    last = plan.readers[plan.releases - 1]
    for m in range(plan.agents, plan.rows):
        to = ",".join(str(j) for j in last[m] if j >= 0)
        names.append(f"{plan.owner[m]}→{to or f'row {m}'}")
    return names
