"""The privacy statement of a run folder, for people who are not statisticians: as data, YAML or a page.

`agent_statement` does the same for an agent of a federation. A statement does not assess whether an ε is
small enough.

**Guarantees.** Numbers are those of privacy.json. An answer without a proof (`view`, `claimed`) is never
called protection. The statement then promises the `worst-case` answer instead, and also names the answer
without a proof. An infinite ε is never called protection either.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from topdp import __version__
from topdp.base.files import make_folder, write_atomically
from topdp.base.number_text import percent_rounded_up, rounded_up
from topdp.errors import InputError
from topdp.privacy.answers import ANSWERS, BY_RANK, WORST_CASE, AnswerKind, proved_kind
from topdp.views.pages.page_assets import PAGE_MARK, expect_ours, policy, static_text, templates
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

YAML_MARK = "# A privacy statement made by topdp"


def statement(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the statement of a run, in the order of the page, given its `run_facts`.

    Raise InputError if the run has no account yet.
    """
    if facts["privacy"] is None:
        raise InputError(
            f"Expected a run with a privacy account, but {facts['name']} has none: {facts['notes'][0]}"
        )
    return statement_of(_run_facts(facts))


def statement_yaml(content: dict[str, Any]) -> str:
    """Return the statement as YAML, in the order of the page."""
    body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    return f"{YAML_MARK} {__version__}. `registry` is a record for registry.opendp.org.\n{body}"


def statement_html(content: dict[str, Any]) -> str:
    """Return the statement as an HTML page for print, without scripts."""
    style = static_text("topdp.css")
    page = templates().get_template("statement.html")
    return page.render(said=content, version=__version__, style=Markup(style), policy=policy([], [style]))


def write_statement(content: dict[str, Any], folder: Path) -> list[Path]:
    """Write `privacy-statement.yaml` and `.html`; return their paths.

    Raise FileError instead of overwriting files that are not statements by topdp.
    """
    make_folder(folder)
    files = {
        folder / "privacy-statement.yaml": (statement_yaml(content), YAML_MARK),
        folder / "privacy-statement.html": (statement_html(content), PAGE_MARK),
    }
    for path, (_, mark) in files.items():
        expect_ours(path, mark)
    for path, (text, _) in files.items():
        write_atomically(path, text)
    return list(files)


def _run_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of `statement.yaml` for a simulated run or a local demonstration."""
    federation = facts["federation"]
    if _test_only(facts):  # then the account, which is about secret noise, holds for nobody
        facts = {**facts, "privacy": _not_private(facts["privacy"]), "power": {}}
    privacy, guarantee, settings = facts["privacy"], facts["guarantee"], facts["settings"]
    agents, colluders, budget = facts["graph"]["agents"], guarantee["colluders"], guarantee["epsilon"]
    kind = ANSWERS[guarantee["answer"]]
    relied = proved_kind(kind)
    epsilon, worst = privacy["epsilon"][relied.key], privacy["epsilon"][WORST_CASE.key]
    batches = [
        batch["kind"] if batch["size"] is None else f"{batch['kind']} of {batch['size']}"
        for batch in privacy["batches"]
    ]
    return {
        "kind": "run",
        **unit_facts(guarantee["unit"], guarantee["sites_per_person"]),
        "of_run": True,
        "simulated": federation is None,
        "demonstration": federation is not None,
        "named_agents": "" if federation is None else _several(federation["names"]),
        **_promise(facts, kind, relied),
        "against": relied.against(colluders),
        "all_others": relied is not WORST_CASE
        and agents > 1
        and all_others_words(None if worst is None else rounded_up(worst)),
        "unfinished": facts["state"] != "done" and facts["notes"][0],
        "name": facts["name"],
        "model": facts["model"],
        "data": facts["data"]["name"],
        "records": facts["data"]["records"]["total"],
        "least_records": facts["data"]["records"]["min"],
        "most_records": facts["data"]["records"]["max"],
        "schema": settings["data"].get("schema"),
        "partition": settings["data"]["partition"],
        "validated": (share := settings["data"].get("validation")) and f"{100 * share:.3g}%",
        "agents": agents,
        "one_party": agents == 1,
        "several": agents > 1,
        "colluders": colluders,
        "method": facts["method"],
        "rounds": facts["rounds"],
        "releases": facts["releases"],
        "adjacency": guarantee["adjacency"],
        "epsilon": epsilon,
        "delta": privacy["delta"],
        "mu": privacy["mu"][relied.key],
        "gaussian": privacy["mu"][relied.key] is not None,
        "assumptions": privacy["assumptions"],
        "warnings": privacy.get("warnings", []),
        "prepared": privacy.get("prepared"),
        "clip": privacy["clip"],
        "clipping": settings["privacy"]["clipping"],
        **weighting_facts(settings),
        "batches": f"; batches in which a {guarantee['unit']} is used: {', '.join(dict.fromkeys(batches))}",
        "sensitivity": {"least": min(privacy["sensitivity"]), "largest": max(privacy["sensitivity"])},
        "calibrated": bool(privacy["guarantee"]),
        "calibrated_epsilon": f"{min(budget):g} to {max(budget):g}, by agent"
        if isinstance(budget, list)
        else budget and f"{budget:g}",
        "charged_by": privacy["guarantee"],
        "noise_source": "seed"
        if facts["noise_seed"] is not None
        else "key"
        if federation is None
        else "system",
        "redrawable_noise": facts["redrawable_noise"],
        "arithmetic": "simulated" if federation is None else "grid",
        "answers": _answers(facts),
        **_scores(facts["metrics"]),
        "unproved": not kind.proved and kind.key,
        "larger_groups": agents > 1 and kind.counts_colluders and count_of(colluders, "agent"),
        "attacked": settings["attack"]["name"] != "none",
        "versions": {**facts["versions"], "statement": f"topdp {__version__}", "plan": privacy["plan"]},
    }


def _several(names: list[str]) -> str:
    """Return the names of agents as text; of many, the first and the last.

    >>> _several(["a", "b"]), _several(["a", "b", "c", "d", "e"])
    ('the agents a, b', 'the agents a to e')
    """
    return "the agents " + (", ".join(names) if len(names) <= 4 else f"{names[0]} to {names[-1]}")


def _test_only(facts: dict[str, Any]) -> str | None:
    """Return why a demonstration protects nobody, or None."""
    federation = facts["federation"] or {}
    if federation.get("rehearsal"):
        return RECORDED_WITHOUT_NOISE
    return NOISE_KNOWN_TO_OTHERS if federation.get("seeded") else None


def _not_private(privacy: dict[str, Any]) -> dict[str, Any]:
    """Return the account without numbers, as of a run that is not private."""
    computed = [key for key, status in privacy["status"].items() if status != "not asked"]
    status = {**privacy["status"], **dict.fromkeys(computed, "not private")}
    nothing = dict.fromkeys(privacy["epsilon"])
    return {**privacy, "status": status, "epsilon": nothing, "mu": nothing}


def _promise(facts: dict[str, Any], kind: AnswerKind, relied: AnswerKind) -> dict[str, Any]:
    privacy, agents = facts["privacy"], facts["graph"]["agents"]
    epsilon, other = privacy["epsilon"][relied.key], privacy["epsilon"][kind.key]
    if test := _test_only(facts):
        return {"test_only": test}
    if privacy["status"][relied.key] == "infinite":
        return {"infinite": True}
    if epsilon is None:
        return {"refused": privacy.get("reasons", {}).get(relied.key, "it was refused.")}
    number = "no number" if other is None else f"ε = {rounded_up(other)}"
    power = facts["power"][relied.key]
    return {
        "promised": rounded_up(epsilon),
        "trained": f"{agents} agents trained" if agents > 1 else "One party trained",
        "other_answer": kind is not relied and f"{kind.key} ({number})",
        "recognised": [percent_rounded_up(power["0.01"]), percent_rounded_up(power["0.05"])],
    }


def _answers(facts: dict[str, Any]) -> dict[str, Any]:
    """Return every answer that was requested: the observer, its numbers, and what an attacker achieves."""
    privacy, answers = facts["privacy"], {}
    for kind in BY_RANK:
        status = privacy["status"].get(kind.key, "not asked")
        if status != "not asked":
            power = facts["power"].get(kind.key, {})
            answers[kind.key] = answer_facts(
                kind,
                privacy["colluders"],
                status,
                privacy["epsilon"][kind.key],
                privacy["mu"][kind.key],
                [power.get("0.01"), power.get("0.05")],
            )
    return answers


def _scores(metrics: dict[str, Any] | None) -> dict[str, Any]:
    if metrics is None:
        return {"utility": "unmeasured"}
    name = metrics["names"][0]
    values = {part: metrics["values"][name][part][-1] for part in ("mean", "min", "max")}
    words = (f"{part} {'undefined' if v is None else f'{v:.4g}'}" for part, v in values.items())
    return {
        "utility": "measured", "metric": name, "round": metrics["rounds"][-1], "scores": ", ".join(words)
    }  # fmt: skip
