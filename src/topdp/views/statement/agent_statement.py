"""A privacy statement of one organisation's part in a run of real agents: what it may say by its own books.

The same form as a simulated run's (`run_statement`), so that both are read alike. Not for what other
members may say: each has books of its own. What is not covered follows docs/agents.md (Not defended) and
docs/privacy.md (Not in any ε).

**Guarantees.** Numbers are those of the books (`own_books.py`), rounded up in sentences. An attacker's power
is bounded by ε and δ alone. Where noise or gradients are known to others nothing is promised.
"""

from __future__ import annotations

from typing import Any

from topdp import __version__
from topdp.agents.agreement.amendments import amendment_of
from topdp.privacy.answers import CLAIMED, WORST_CASE, AnswerKind, answer_kind
from topdp.views.pages.plain_words import at_most, no_less, small
from topdp.views.statement.agent_record import OwnBooks
from topdp.views.statement.deployment_registry import TO_FILL_IN, private_unit
from topdp.views.statement.privacy_costs import power_of_point

SHARES = (0.01, 0.05)  # of false alarms


def own_statement(books: OwnBooks) -> dict[str, Any]:
    """Everything that it says, in the order of the page."""
    answers = {kind.key: _answer(books, kind) for kind in dict.fromkeys([books.relied, WORST_CASE])}
    if books.charging.key not in answers:
        answers[books.charging.key] = {**_answer(books, books.charging), "is_a_guarantee": False}
    return {
        "summary": _summary(books),
        "simulated": False,
        "scope": f"One record of {books.agent}",
        "made_from": "the books of the agent",
        "deployment": _deployment(books),
        "guarantee": {"budget_on": books.charged_by, "delta": books.delta, "answers": answers},
        "evaluation": _evaluation(books),
        "not_protected": not_protected(books),
        "versions": {
            "statement": f"topdp {__version__}",
            "manifest": books.setup.manifest.hash,
            "plan": books.setup.plan.digest(),
            "charges on the books": str(books.charges),
        },
    }


def _epsilon(books: OwnBooks, kind: AnswerKind) -> float | None:
    if kind == books.relied:
        return books.promised
    return books.worst_case if kind is WORST_CASE else books.epsilon


def _answer(books: OwnBooks, kind: AnswerKind) -> dict[str, Any]:
    epsilon = _epsilon(books, kind)
    known = epsilon is not None and books.protects
    power = [
        power_of_point(epsilon, books.delta, share) if known and epsilon is not None else None
        for share in SHARES
    ]
    return {
        "against": kind.against(books.colluders),
        "is_a_guarantee": known and kind.proved,
        "status": "not private" if not books.protects else "finite" if known else "infinite",
        "epsilon": epsilon if known else None,
        "mu": books.mu(epsilon) if known and kind is not CLAIMED else None,
        "recognised_at_1_percent_false_alarms": power[0],
        "recognised_at_5_percent_false_alarms": power[1],
    }


def _summary(books: OwnBooks) -> list[str]:
    return [
        *_promise(books),
        *_unknown_noise(books),
        *_before(books),
        *_how_far(books),
        *_departures(books),
        _whose_word(books),
    ]


def _promise(books: OwnBooks) -> list[str]:
    if not books.protects:
        why = (
            "its noise came from a seed that others know"
            if books.seeded
            else "gradients were written down without noise"
        )
        return [f"This run protects nobody: {why}. It was a test, and its books say so for ever."]
    if books.promised is None:
        return ["This run protects nobody: what was sent is not hidden by noise, and ε is infinite."]
    agents = len(books.setup.manifest.names)
    said = [
        f"{books.agent} took part, with {books.records} records, in the training of one model by "
        f"{agents} agents. "
        f"For {books.relied.against(books.colluders)}, it is hard to tell whether any one of its "
        "records was used: "
        f"ε = {no_less(books.promised)} at δ = {small(books.delta)}, for all that has left it so far "
        "in this run."
    ]
    if books.charging != books.relied:
        why = "does not hold where rows are rounded to float32" if books.rounded else "guarantees nothing"
        said.append(
            f"Its budget was kept by another answer, {books.charged_by}, which {why}: do not rely on it."
        )
    one, five = (at_most(power_of_point(books.promised, books.delta, share)) for share in SHARES)
    said.append(
        "In other words: an attacker who accuses wrongly in 1 of 100 cases recognises a record that was "
        "used in at most "
        f"{one} of 100; in at most {five} of 100 if wrong in 5. Guessing would be 1 and 5."
    )
    if books.relied is not WORST_CASE:
        worst = books.worst_case
        said.append(
            "If all other agents put everything together, "
            + ("nothing is guaranteed." if worst is None else f"the same number is ε = {no_less(worst)}.")
        )
    return said


def _unknown_noise(books: OwnBooks) -> list[str]:
    if not (books.upgraded and books.protects):
        return []
    return [
        "Its books were begun by a version that did not write down whether noise came from a seed: all of "
        "this holds if it did not (--seeded was never given)."
    ]


def _before(books: OwnBooks) -> list[str]:
    """What a run that this one takes the place of has cost is on other books."""
    found = amendment_of(books.setup.manifest)
    if found is None or books.agent not in found.spent:
        return []
    return [
        f"It takes the place of the run {found.manifest[:12]}, in which {books.agent} took part: what left "
        f"it then is on other books, by the plan at most ε = {no_less(found.spent[books.agent])} at δ = "
        f"{small(found.delta)}, and adds to this."
    ]


def _how_far(books: OwnBooks) -> list[str]:
    last = books.setup.plan.releases - 1
    if books.round < 0:
        return ["Nothing was released yet: nothing is charged."]
    if books.over:
        said = [
            f"The run is over for it, after release {books.round} of "
            f"{last if books.ends is None else books.ends}."
        ]
    else:
        limit = (
            ""
            if books.budget is None
            else f", and by no more than its budget allows: ε = {no_less(books.budget)}"
        )
        said = [
            f"The run goes on: release {books.round} of {last} is the last on the books. ε grows with "
            f"each{limit}."
        ]
    if books.stopped is not None:
        said.append(
            f"Its budget ended before the plan: its records entered no release from {books.stopped} on."
        )
    return said


def _departures(books: OwnBooks) -> list[str]:
    if books.departed is not None:
        return [
            f"The plan was departed from ({books.departed}): from there on {books.charged_by} is charged."
        ]
    gone = sorted({*books.departures, *books.gone})
    if gone:
        return [f"Gone, or refusing it, and counted as one more who pools what it sees: {', '.join(gone)}."]
    return []


def _whose_word(books: OwnBooks) -> str:
    return (
        f"This is what the books of {books.agent} say, which were read and found whole: a chain of "
        f"{books.charges} "
        "charges. It is its owner's word: who can write the file can write other books, and whether "
        "these are the "
        "newest is known to its neighbours."
    )


def not_protected(books: OwnBooks) -> list[str]:
    """What nobody should believe that this covers."""
    privacy, rules = books.setup.manifest.config.privacy, books.setup.manifest.rules
    said = [
        f"That {books.agent} takes part, with whom it is linked, how many records it has, and when and "
        "how much it sends.",
        "What the model teaches about everybody: a correct prediction from general knowledge is no "
        "breach here.",
        "Several records of one person, or one person's records at several members: ε is that of one "
        "record at one member.",
        "Other runs on the same records: each adds to this one (topdp agent budget shows their sum).",
        "Choosing settings, features or a model by looking at private records; scores on them that were "
        "told to others.",
        "Whoever owns or breaks into the machine of the agent: it has the records, the key and the books.",
        "An old copy of the books that is put back while all neighbours that know better lie, are gone "
        "or are put back too.",
        "Timing, memory and logs; the order in which clipped gradients are added in floating point, and "
        "what rounding "
        "leaves after noise: docs/privacy.md has the figures.",
        "Poisoning: other members can spoil the model with rows of their choice.",
    ]
    if books.relied.counts_colluders:
        reserve = books.setup.reserve
        spare = (
            f", {reserve} of them as a reserve for members that drop out"
            if 0 < reserve < len(books.setup.manifest.names)
            else ""
        )
        said.insert(
            0,
            f"More than {_others(books.setup.coalition)} putting together what they see{spare}: "
            "then, up to all others, the "
            "worst case counts.",
        )
        said.insert(
            1,
            "A departure from the plan far away, which this agent did not see: the worst case holds all "
            "the same.",
        )
        if books.setup.coalition >= len(books.setup.manifest.names) - 1:  # all others are counted already
            del said[0]
    if not answer_kind(privacy.guarantee).proved:
        said.insert(
            0,
            f"Anybody, by the answer `{privacy.guarantee}`: it describes, and can be wrong. The worst "
            "case holds.",
        )
    if rules.tolerates_silence:
        said.append(
            "Members that others went on without: charges are those of what was sent, whoever was missing."
        )
    if books.upgraded:
        said.append(
            "Releases of a version that signed no rows: nobody could show it if its books were an old copy."
        )
    return said


def _others(count: int) -> str:
    return f"{count} other agent{'s' if count != 1 else ''}"


def _deployment(books: OwnBooks) -> dict[str, Any]:
    config, manifest = books.setup.manifest.config, books.setup.manifest
    removed = config.privacy.adjacency == "add-remove"
    promised = books.promised if books.protects else None
    return {
        "product": {
            "name": f"{books.agent}, federation {manifest.hash[:12]}",
            "data_curators": books.agent,
            "intended_use": TO_FILL_IN,
            "data_product_type": "Machine learning model",
            "data_product_region": TO_FILL_IN,
            "publication_date": TO_FILL_IN,
            "description": f"A model ({config.model.name}) trained by {len(manifest.names)} agents with "
            "the method "
            f"{config.method.name} in {config.rounds} rounds, and what {books.agent} sent for it.",
        },
        "dp_flavor": {
            "name": "Approximate DP",
            "also": "Gaussian DP" if books.protects and books.mu(books.promised) is not None else None,
            "input_metric": "symmetric distance: records added or removed" if removed else "changed records",
            "bound_on_input_distance": 1,
            "bounded_or_unbounded": "unbounded, with a public number of records" if removed else "bounded",
            "output_measure": "(ε, δ)",
            "bound_on_output_distance": {"epsilon": promised, "delta": books.delta},
            "data_domain": f"{books.records} records of {books.agent}",
            "unprotected_quantities": [
                "how many records each agent holds",
                "who takes part, and who is linked to whom",
                "all settings, and every random choice of the protocol but the noise",
            ],
        },
        "privacy_loss": {
            **private_unit(),
            "privacy_parameters": {
                "epsilon": promised,
                "delta": books.delta,
                "mu": books.mu(books.promised) if books.protects else None,
            },
            "privacy_parameters_description": f"Of {books.agent} alone, against "
            f"{books.relied.against(books.colluders)}.",
        },
        "model": {
            "model_name": "Decentralised",
            "model_name_description": "No server: every agent adds noise before anything leaves it, and "
            "exchanges models with "
            "its neighbours on a graph.",
            "actors": [
                f"{books.agent}: clips and adds noise itself, and is trusted with its own records.",
                f"Other agents: may keep and study all they see; {books.colluders} may pool it.",
                "Whoever receives the final models: needs no trust.",
            ],
            "release_type": "Many releases",
            "release_type_description": f"{books.round + 1} releases on the books, all of them counted "
            "together.",
            "data_source_type": "Static",
            "access_type": "Non-interactive",
        },
        "accounting": {
            "composition": "Every release was charged on the books before it left, all of them "
            "together, under "
            f"{books.charged_by}. Rounding goes to the private side.",
            "budget": books.budget,
            "reserve_for_departures": books.setup.manifest.rules.departures,
            "post_processing": "Mixing and evaluating the released models costs nothing further.",
            "several_runs": "This is one run. Further runs on the same records add to it, and are not "
            "counted here.",
        },
        "implementation": {
            "mechanisms": f"Gaussian noise on gradients clipped for each record to length "
            f"{config.privacy.clip:g} "
            f"({config.privacy.clipping}), method {config.method.name}.",
            "noise_source": "A cipher keyed by the operating system, for every release anew."
            if books.protects
            else "Known to others: not private.",
            "floating_point": "The manifest is of a version that summed gradients in the type of the model, "
            "and not on a grid: what rounding shows of releases made by it is in no ε."
            if books.of_older_version
            else "Sums and noise in float64, on a public grid, rounded once after noise; what is left is in "
            "docs/privacy.md, and in no ε.",
            "verification": "Open source. The books were read whole by this command; no outside party "
            "has certified it.",
            "pre_processing_eda_hyperparameter_tuning": "Not counted.",
            "justification": TO_FILL_IN,
        },
    }


def _evaluation(books: OwnBooks) -> dict[str, str]:
    return {
        "parameters": "ε, δ and μ stand above, for all releases on the books.",
        "unit_of_privacy": "One record. Whether that is a person is decided by whoever prepared the data.",
        "neighbouring_data_sets": "One record more or less (unbounded), the number of records being public."
        if books.setup.manifest.config.privacy.adjacency == "add-remove"
        else "One record with other contents (bounded).",
        "trust_model": "Nobody is trusted by all; each agent is trusted with its own records.",
        "utility": "Not part of this statement: scores on an organisation's own records are in no account.",
        "algorithm": "Gaussian noise on clipped gradients; the proof is in the documentation of topdp "
        "(How private is it?).",
        "random_numbers": "From the operating system, through a cipher."
        if books.protects
        else "Known to others: not private.",
        "side_channels": "Timing and the machine itself are not covered.",
        "access_control_and_collection": "How records were collected, stored and who may read them is "
        "outside of this statement.",
        "privacy_budget": "Kept by the agent before each release; a start can make it smaller, never larger.",
    }
