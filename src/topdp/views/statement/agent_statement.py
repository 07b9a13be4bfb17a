"""The privacy statement of one agent of a federation, according to its own ledger.

It has the form of a simulated run's statement (`run_statement`). It covers this agent only, because every
member has its own ledger. The uncovered risks follow docs/agents.md (Not defended) and docs/privacy.md (Not
in any ε).

**Guarantees.** Numbers are those of the ledger (`agent_record.py`), rounded up in sentences. The bound
on an attacker's power follows from ε and δ alone. If others know the noise or the gradients, the statement
promises nothing.
"""

from __future__ import annotations

from typing import Any

from topdp import __version__
from topdp.base.number_text import percent_rounded_up, rounded_up
from topdp.privacy.answers import WORST_CASE, AnswerKind, answer_kind
from topdp.views.pages.plain_words import small
from topdp.views.statement.agent_record import AgentRecord
from topdp.views.statement.statement_text import (
    NOISE_KNOWN_TO_OTHERS,
    RECORDED_WITHOUT_NOISE,
    all_others_words,
    answer_facts,
    count_of,
    statement_of,
    unit_facts,
    weighting_facts,
)


def agent_statement(record: AgentRecord) -> dict[str, Any]:
    """Return the statement, in the order of the page."""
    answers = {kind.key: _answer(record, kind) for kind in dict.fromkeys([record.relied, WORST_CASE])}
    if record.charging.key not in answers:
        answers[record.charging.key] = {**_answer(record, record.charging), "is_a_guarantee": False}
    setup, manifest = record.setup, record.setup.manifest
    config, promised = manifest.config, record.promised if record.protects else None
    guarantee = answer_kind(config.privacy.guarantee)
    return statement_of(
        {
            "kind": "agent",
            **unit_facts(config.privacy.unit, config.privacy.sites_per_person),
            "simulated": False,
            "federated": True,
            **_promise(record),
            "against": record.relied.against(record.colluders),
            **_replaced_run(record),
            **_progress(record),
            "departed": record.departed,
            "gone": record.departed is None and ", ".join(sorted({*record.departures, *record.gone})),
            "charges": record.charges,
            "agent": record.agent,
            "agents": len(manifest.names),
            "one_party": False,
            "several": True,
            "colluders": record.colluders,
            "manifest": manifest.hash[:12],
            "model": config.model.name,
            "records": setup.counts[manifest.names.index(record.agent)],
            "method": config.method.name,
            "rounds": config.rounds,
            "releases": record.round + 1,
            "adjacency": config.privacy.adjacency,
            "epsilon": promised,
            "delta": record.delta,
            "mu": record.mu(promised),
            "gaussian": record.mu(promised) is not None,
            "charged_by": record.charged_by,
            "budget": record.budget,
            "reserve": manifest.rules.departures,
            "clip": config.privacy.clip,
            "clipping": config.privacy.clipping,
            **weighting_facts(config.model_dump()),
            "batches": "",
            "noise_source": "system" if record.protects else "others",
            "arithmetic": "grid" if manifest.rules.dtype == "auto" else "older",
            "answers": answers,
            "utility": "private",
            "unproved": not guarantee.proved and guarantee.name,
            **_larger_groups(record),
            "tolerates_silence": manifest.rules.tolerates_silence,
            "versions": {
                "statement": f"topdp {__version__}",
                "manifest": manifest.hash,
                "plan": setup.plan.digest(),
                "charges in the ledger": str(record.charges),
            },
        }
    )


def _answer(record: AgentRecord, kind: AnswerKind) -> dict[str, Any]:
    epsilon = record.worst_case if kind is WORST_CASE else record.epsilon
    if kind == record.relied:
        epsilon = record.promised
    status = "finite" if record.protects and epsilon is not None else "infinite"
    finite = epsilon if status == "finite" else None
    return answer_facts(
        kind,
        record.colluders,
        status if record.protects else "not private",
        finite,
        record.mu(finite) if kind.has_mu else None,
        [None, None] if finite is None else record.powers(kind, finite),
    )


def _promise(record: AgentRecord) -> dict[str, Any]:
    if record.seeded:
        return {"test_only": NOISE_KNOWN_TO_OTHERS}
    if record.rehearsal:
        return {"test_only": RECORDED_WITHOUT_NOISE}
    if record.promised is None:
        return {"infinite": True}
    reason = "does not hold if rows are rounded to float32" if record.rounded else "guarantees nothing"
    worst = record.worst_case
    return {
        "promised": rounded_up(record.promised),
        "other_answer": record.charging != record.relied and reason,
        "recognised": [percent_rounded_up(power) for power in record.powers(record.relied, record.promised)],
        "all_others": record.relied is not WORST_CASE
        and all_others_words(None if worst is None else rounded_up(worst)),
    }


def _replaced_run(record: AgentRecord) -> dict[str, Any]:
    """Return what the run that this run replaces has cost; that cost is recorded in another ledger."""
    amendment = record.setup.manifest.amends
    if amendment is None or record.agent not in amendment.spent:
        return {}
    return {
        "replaced": amendment.manifest[:12],
        "replaced_epsilon": rounded_up(amendment.spent[record.agent]),
        "replaced_delta": small(amendment.spent_delta(record.agent)),
    }


def _progress(record: AgentRecord) -> dict[str, Any]:
    if record.round < 0:
        return {"nothing_sent": True}
    last = record.setup.plan.releases - 1
    return {
        "over": record.over,
        "continues": not record.over,
        "round": record.round,
        "last": last,
        "end": last if record.ends is None else record.ends,
        "limit": ""
        if record.budget is None
        else f", up to its budget of at most ε = {rounded_up(record.budget)}",
        "stopped": record.stopped is not None,
        "stopped_at": record.stopped,
    }


def _larger_groups(record: AgentRecord) -> dict[str, Any]:
    """Return the facts for the sentences about more colluders than the guarantee counts."""
    setup, members = record.setup, len(record.setup.manifest.names)
    reserved = f", {setup.reserve} of them as a reserve for members that drop out"
    return {
        "departures_unnoticed": record.relied.counts_colluders,
        "larger_groups": record.relied.counts_colluders
        and setup.coalition < members - 1  # otherwise all others are counted already
        and count_of(setup.coalition, "other agent"),
        "reserved": reserved if 0 < setup.reserve < members else "",
    }
