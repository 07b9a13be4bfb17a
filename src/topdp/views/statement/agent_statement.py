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
from topdp.agents.agreement.amendments import amendment_of
from topdp.privacy.answers import CLAIMED, WORST_CASE, AnswerKind, answer_kind
from topdp.views.pages.plain_words import no_less, small
from topdp.views.statement import statement_text
from topdp.views.statement.agent_record import AgentRecord

UNKNOWN_NOISE = (
    "Its ledger began under an older version, which did not record whether noise came from a seed. All of "
    "this holds only if noise never came from a seed (--seeded was never given)."
)


def agent_statement(record: AgentRecord) -> dict[str, Any]:
    """Return the statement, in the order of the page."""
    answers = {kind.key: _answer(record, kind) for kind in dict.fromkeys([record.relied, WORST_CASE])}
    if record.charging.key not in answers:
        answers[record.charging.key] = {**_answer(record, record.charging), "is_a_guarantee": False}
    return {
        "summary": _summary(record),
        "simulated": False,
        "scope": f"One record of {record.agent}",
        "made_from": "the ledger of the agent",
        "deployment": _deployment(record),
        "guarantee": {"budget_on": record.charged_by, "delta": record.delta, "answers": answers},
        "evaluation": _evaluation(record),
        "not_protected": not_protected(record),
        "versions": {
            "statement": f"topdp {__version__}",
            "manifest": record.setup.manifest.hash,
            "plan": record.setup.plan.digest(),
            "charges in the ledger": str(record.charges),
        },
    }


def _answer(record: AgentRecord, kind: AnswerKind) -> dict[str, Any]:
    epsilon = record.worst_case if kind is WORST_CASE else record.epsilon
    if kind == record.relied:
        epsilon = record.promised
    status = "finite" if record.protects and epsilon is not None else "infinite"
    known = epsilon if status == "finite" else None
    return statement_text.answer_facts(
        kind,
        record.colluders,
        status if record.protects else "not private",
        known,
        None if kind is CLAIMED else record.mu(known),
        [None, None] if known is None else record.powers(known),
    )


def _summary(record: AgentRecord) -> list[str]:
    return [
        *_promise(record),
        *([UNKNOWN_NOISE] if record.upgraded and record.protects else []),
        *_replaced_run(record),
        *_progress(record),
        *_departures(record),
        f"These numbers come from the ledger of {record.agent}, which was read and verified: a chain of "
        f"{record.charges} charges. It is its owner's claim: anybody who can write the file can write "
        "another ledger, and only the neighbours know whether this one is the newest.",
    ]


def _promise(record: AgentRecord) -> list[str]:
    if not record.protects:
        reason = (
            "its noise came from a seed that others know"
            if record.seeded
            else "it recorded gradients without noise"
        )
        return [f"This run protects nobody: {reason}. It was a test, and its ledger says so permanently."]
    if record.promised is None:
        return ["This run protects nobody: noise does not hide what was sent, and ε is infinite."]
    agents = len(record.setup.manifest.names)
    sentences = [
        f"{record.agent} took part with {record.records} records in the training of one model by {agents} "
        f"agents. For {record.relied.against(record.colluders)}, it is hard to tell whether any one of its "
        f"records was used: ε = {no_less(record.promised)} at δ = {small(record.delta)}, for everything it "
        "has sent so far in this run."
    ]
    if record.charging != record.relied:
        reason = "does not hold if rows are rounded to float32" if record.rounded else "guarantees nothing"
        sentences.append(
            f"Its budget was charged by another answer, {record.charged_by}, which {reason}: do not rely on "
            "it."
        )
    sentences.append(statement_text.attacker_sentence(record.powers(record.promised)))
    if record.relied is not WORST_CASE:
        worst = record.worst_case
        sentences.append(statement_text.all_others_sentence(None if worst is None else no_less(worst)))
    return sentences


def _replaced_run(record: AgentRecord) -> list[str]:
    """Return a sentence on the cost of the run that this one replaces, which is in another ledger."""
    amendment = amendment_of(record.setup.manifest)
    if amendment is None or record.agent not in amendment.spent:
        return []
    return [
        f"It replaces the run {amendment.manifest[:12]}, in which {record.agent} took part. The cost of "
        f"that run is in another ledger, by the plan at most ε = {no_less(amendment.spent[record.agent])} at "
        f"δ = {small(amendment.delta)}. It adds to the cost of this run."
    ]


def _progress(record: AgentRecord) -> list[str]:
    last = record.setup.plan.releases - 1
    if record.round < 0:
        return ["Nothing has been released or charged yet."]
    if record.over:
        end = last if record.ends is None else record.ends
        sentences = [f"The run is over for it, after release {record.round} of {end}."]
    else:
        limit = "" if record.budget is None else f", up to its budget of at most ε = {no_less(record.budget)}"
        sentences = [
            f"The run continues: release {record.round} of {last} is the last in the ledger. ε grows with "
            f"each release{limit}."
        ]
    if record.stopped is not None:
        sentences.append(
            f"Its budget ended before the plan: its records enter no release from {record.stopped} onwards."
        )
    return sentences


def _departures(record: AgentRecord) -> list[str]:
    if record.departed is not None:
        return [
            f"The run departed from the plan ({record.departed}). From then on, releases are charged by the "
            f"answer {record.charged_by}."
        ]
    gone = sorted({*record.departures, *record.gone})
    if gone:
        return [f"Members that are gone or refuse it, each counted as one more colluder: {', '.join(gone)}."]
    return []


def not_protected(record: AgentRecord) -> list[str]:
    """Return a sentence for each risk that the guarantee does not cover."""
    setup, rules = record.setup, record.setup.manifest.rules
    guarantee, members = setup.manifest.config.privacy.guarantee, len(setup.manifest.names)
    sentences = []
    if not answer_kind(guarantee).proved:
        sentences.append(statement_text.unproved_sentence(guarantee))
    if record.relied.counts_colluders:
        if setup.coalition < members - 1:  # otherwise all others are counted already
            reserve = (
                f", {setup.reserve} of them as a reserve for members that drop out"
                if 0 < setup.reserve < members
                else ""
            )
            sentences.append(
                f"More than {setup.coalition} other agent{'s' if setup.coalition != 1 else ''} pooling what "
                f"they see{reserve}: for larger groups, up to all others, the worst case holds."
            )
        sentences.append(
            "A distant departure from the plan that this agent did not notice: the worst case holds "
            "nevertheless."
        )
    sentences += [
        f"That {record.agent} takes part, with whom it is linked, how many records it has, and when and how "
        "much it sends.",
        statement_text.NOT_PROTECTED["model"],
        "Several records of one person, or one person's records at several members: ε is that of one record "
        "at one member.",
        "Other runs on the same records: each adds to this one (topdp agent budget shows their sum).",
        statement_text.NOT_PROTECTED["tuning"] + " Scores on private records that were passed on to others.",
        "Anybody who owns or breaks into the agent's machine: it contains the records, the key and the "
        "ledger.",
        "An old copy of the ledger that is restored while all neighbours that know better lie, are gone or "
        "are restored too.",
        "Timing, memory and logs; the order in which clipped gradients are added in floating point, and what "
        "rounding leaves after noise: docs/privacy.md has the figures.",
        "Poisoning: other members can spoil the model with arbitrary rows.",
    ]
    if rules.tolerates_silence:
        sentences.append(
            "Missing members: the agents may continue without them, and charges are for what was sent."
        )
    if record.upgraded:
        sentences.append(
            "Releases of an older version that signed no rows: nobody could prove that its ledger was an old "
            "copy."
        )
    return sentences


def _deployment(record: AgentRecord) -> dict[str, Any]:
    config, manifest = record.setup.manifest.config, record.setup.manifest
    promised = record.promised if record.protects else None
    older_version = manifest.rules.dtype != "auto"
    return statement_text.deployment(
        name=f"{record.agent}, federation {manifest.hash[:12]}",
        data_curators=record.agent,
        description=f"A model ({config.model.name}) trained by {len(manifest.names)} agents with the method "
        f"{config.method.name} in {config.rounds} rounds, and what {record.agent} sent for it.",
        adjacency=config.privacy.adjacency,
        epsilon=promised,
        delta=record.delta,
        mu=record.mu(promised),
        data_domain=f"{record.records} records of {record.agent}",
        loss=f"Of {record.agent} alone, against {record.relied.against(record.colluders)}.",
        model=statement_text.trust_model(
            f"{record.agent}: clips and adds noise itself, and is trusted with its own records.",
            f"Other agents: may store and study all they see; {record.colluders} may pool it.",
            one_party=False,
            releases=f"{record.round + 1} releases in the ledger",
        ),
        accounting={
            "composition": "Every release was charged in the ledger before it was sent, all of them "
            f"together, under {record.charged_by}. Rounding goes to the private side.",
            "budget": record.budget,
            "reserve_for_departures": manifest.rules.departures,
            "post_processing": statement_text.POST_PROCESSING,
            "several_runs": statement_text.SEVERAL_RUNS,
        },
        implementation=statement_text.implementation(
            clip=config.privacy.clip,
            clipping=config.privacy.clipping,
            method=config.method.name,
            noise_source="A cipher keyed by the operating system, with a new key for every release."
            if record.protects
            else "Known to others: not private.",
            floating_point="The manifest is from a version that summed gradients in the type of the model "
            "and not on a grid. What rounding reveals of releases by that version is in no ε."
            if older_version
            else "Sums and noise are in float64 on a public grid, rounded once after the noise. What remains "
            "is in docs/privacy.md and in no ε.",
            verification="This command read and verified the whole ledger.",
            tuning="",
        ),
    )


def _evaluation(record: AgentRecord) -> dict[str, str]:
    return statement_text.evaluation(
        adjacency=record.setup.manifest.config.privacy.adjacency,
        one_party=False,
        parameters=", for all releases in the ledger.",
        utility="Not part of this statement: scores on an organisation's own records are in no account.",
        random_numbers="From the operating system, through a cipher."
        if record.protects
        else "Known to others: not private.",
        privacy_budget="Enforced by the agent before each release. A restart can lower it, never raise it.",
    )
