"""What a run promises, in a few sentences and as numbers: to whom, against whom, what an attacker achieves.

**Guarantees.** Numbers are those of privacy.json. An answer that guarantees nothing (`view`, `claimed`) is
never called protection: the worst case is promised instead, and the other one named. Nor is an infinite one.
"""

from __future__ import annotations

from typing import Any

from topdp.privacy.answers import ANSWERS, BY_RANK, WORST_CASE, AnswerKind
from topdp.views.pages.plain_words import at_most, small


def relied_on(facts: dict[str, Any]) -> AnswerKind:
    """The answer whose numbers are promised: the run's own if it is proved, else the worst case."""
    kind = ANSWERS[facts["guarantee"]["answer"]]
    return kind if kind.proved else WORST_CASE


def promised_epsilon(facts: dict[str, Any]) -> float | None:
    value: float | None = facts["privacy"]["epsilon"][relied_on(facts).key]
    return value


def against(facts: dict[str, Any]) -> str:
    return relied_on(facts).against(facts["guarantee"]["colluders"])


def summary(facts: dict[str, Any]) -> list[str]:
    """A few sentences, the most important first."""
    said = [*_promise(facts)]
    said.append(
        "This is a simulated run: all agents ran on one machine. It says how private the method is with "
        "these "
        "settings, not how any real system was operated."
    )
    worst = facts["privacy"]["epsilon"][WORST_CASE.key]
    if relied_on(facts) is not WORST_CASE and facts["graph"]["agents"] > 1:
        said.append(
            "If all other agents put everything together, "
            + (f"the same number is ε = {worst:.4g}." if worst is not None else "nothing is guaranteed.")
        )
    if facts["state"] != "done":
        said.append(f"{facts['notes'][0]} The numbers are those of the whole plan.")
    return said


def _promise(facts: dict[str, Any]) -> list[str]:
    privacy, answer, relied = facts["privacy"], facts["guarantee"]["answer"], relied_on(facts).key
    epsilon, agents = promised_epsilon(facts), facts["graph"]["agents"]
    if privacy["status"][relied] == "infinite":
        return ["This run protects nobody: what some agents send is not hidden by noise, and ε is infinite."]
    if epsilon is None:
        why = privacy.get("reasons", {}).get(relied, "it was refused.")
        return [f"No guarantee is known for this run: {why}"]
    trained = f"{agents} agents trained" if agents > 1 else "One party trained"
    said = [
        f"{trained} a model so that it is hard to tell, for {against(facts)}, whether any one record was "
        "used: "
        f"ε = {epsilon:.4g} at δ = {small(privacy['delta'])}."
    ]
    if answer != relied:
        known = privacy["epsilon"][answer]
        number = "no number" if known is None else f"ε = {known:.4g}"
        said.append(
            f"The noise was set by another answer, {answer} ({number}), which guarantees nothing: do not "
            "rely on it."
        )
    power = facts["power"][relied]
    said.append(
        "In other words: an attacker who accuses wrongly in 1 of 100 cases recognises a record that was "
        "used in at "
        f"most {at_most(power['0.01'])} of 100; in at most {at_most(power['0.05'])} of 100 if wrong in 5. "
        "Guessing "
        "would be 1 and 5."
    )
    return said


def answers(facts: dict[str, Any]) -> dict[str, Any]:
    """Every answer: who is protected against whom, and what an attacker achieves."""
    privacy = facts["privacy"]
    found = {}
    for kind in BY_RANK:
        name = kind.key
        status = privacy["status"][name]
        if status == "not asked":
            continue
        power = facts["power"].get(name)
        found[name] = {
            "against": kind.against(privacy["colluders"]),
            "is_a_guarantee": kind.proved and status == "finite",
            "status": status,
            "epsilon": privacy["epsilon"][name],
            "mu": privacy["mu"][name],
            "recognised_at_1_percent_false_alarms": None if power is None else power["0.01"],
            "recognised_at_5_percent_false_alarms": None if power is None else power["0.05"],
        }
    return {"budget_on": privacy["guarantee"], "delta": privacy["delta"], "answers": found}
