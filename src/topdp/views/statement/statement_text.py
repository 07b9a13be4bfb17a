"""The text of privacy statements: `statement.yaml`, which contains every sentence, filled in with facts.

`run_statement` and `agent_statement` collect the facts of the two kinds of statements. A text that both kinds
share occurs only once.

**Guarantees.** Statements contain no key. They state if a noise seed makes the noise of a run public.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from topdp.privacy.answers import AnswerKind
from topdp.runs.epsilon_text import unit_text
from topdp.views.pages.plain_words import small

FALSE_ALARM_SHARES = (0.01, 0.05)

# Why a run of agents protects nobody, for `test_only` in statement.yaml.
NOISE_KNOWN_TO_OTHERS = "its noise came from a seed that others know"
RECORDED_WITHOUT_NOISE = "it recorded gradients without noise"


def statement_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the statement with these facts, in the order of the page."""
    delta = small(facts["delta"]) + (", by agent" if isinstance(facts["delta"], list) else "")
    more = {
        "delta_words": delta,
        "one_delta": delta if isinstance(facts["delta"], list) else facts["delta"],
        "has_epsilon": facts["epsilon"] is not None,
        "written": datetime.now(UTC).date().isoformat(),
    }
    statement: dict[str, Any] = _filled(_template(), {**facts, **more})
    return statement


def weighting_facts(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what counts the same in the average of all agents, from the settings of a run."""
    weights = settings["privacy"].get("weights")
    smaller = ""
    if isinstance(weights, list):
        smaller = f", except for the weights of agents: {min(weights):.3g} to {max(weights):.3g}"
    return {"weighting": settings["train"]["weighting"], "smaller_weights": smaller}


@cache
def _template() -> dict[str, Any]:
    text = files("topdp.views.statement").joinpath("statement.yaml").read_text(encoding="utf-8")
    template: dict[str, Any] = yaml.safe_load(text)
    return template


def _filled(template: Any, facts: Mapping[str, Any]) -> Any:
    """Return a part of the template, filled in; its first comment explains `choose`, `when` and `say`.

    >>> _filled(["{x} of {y}", {"when": "z", "say": "not said"}, "{x}"], {"x": 1, "y": 2})
    ['1 of 2', 1]
    >>> _filled({"a": {"choose": "x", 1: "one", 2: "two"}}, {"x": 2})
    {'a': 'two'}
    """
    if isinstance(template, str):
        fact = re.fullmatch(r"{(\w+)}", template)
        return facts[fact[1]] if fact else template.format(**facts)
    if isinstance(template, list):
        return [_filled(part, facts) for part in template if _applies(part, facts)]
    if not isinstance(template, dict):
        return template
    if "choose" in template:
        return _filled(template[facts[template["choose"]]], facts)
    if "join" in template:
        return "; ".join(_filled(template["join"], facts))
    if "say" in template:
        return _filled(template["say"], facts)
    return {key: _filled(part, facts) for key, part in template.items() if _applies(part, facts)}


def _applies(template: Any, facts: Mapping[str, Any]) -> bool:
    return not (isinstance(template, dict) and "when" in template) or bool(facts.get(template["when"]))


def answer_facts(
    kind: AnswerKind,
    colluders: int,
    status: str,
    epsilon: float | None,
    mu: float | None,
    powers: Sequence[float | None],
) -> dict[str, Any]:
    """Return the observer of an answer, its numbers, and what an attacker achieves.

    `powers`: at each of `FALSE_ALARM_SHARES`.
    """
    return {
        "against": kind.against(colluders),
        "is_a_guarantee": kind.proved and status == "finite",
        "status": status,
        "epsilon": epsilon,
        "mu": mu,
        "recognised_at_1_percent_false_alarms": powers[0],
        "recognised_at_5_percent_false_alarms": powers[1],
    }


def unit_facts(unit: str, sites: int) -> dict[str, Any]:
    """Return words for what is protected. `sites`: the most agents that may hold records of one person."""
    of_person = unit == "person"
    return {
        "unit": unit,
        "units": f"{unit}s",
        "of_records": not of_person,
        "of_persons": of_person,
        "sites": sites,
        "several_sites": sites > 1,
        "protected": unit_text(unit, sites).capitalize(),
        "holders": "one agent" if sites == 1 else f"up to {sites} agents",
        "whether": "the records of any one person were" if of_person else "any one record was",
        "whether_own": "the records of any one of its persons were"
        if of_person
        else "any one of its records was",
        "found": "a person whose records were" if of_person else "a record that was",
        "clipped_words": "; the gradients of one person's records are averaged" if of_person else "",
    }


def all_others_words(epsilon: str | None) -> str:
    return "nothing is guaranteed" if epsilon is None else f"the same guarantee holds with ε = {epsilon}"


def count_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
