"""The privacy statement of a simulated run, for people who are not statisticians: a dictionary, YAML, a page.

`agent_statement` does the same for an agent of a federation. A statement does not assess whether an ε is
small enough.

**Guarantees.** Numbers are those of privacy.json. An answer without a proof (`view`, `claimed`) is never
called protection: the statement promises the worst case instead, and names the other answer. An infinite ε
is never called protection either.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from markupsafe import Markup

from topdp import __version__
from topdp.base.files import make_folder, write_atomically
from topdp.errors import InputError
from topdp.privacy.answers import ANSWERS, BY_RANK, WORST_CASE, AnswerKind
from topdp.views.pages.page_assets import PAGE_MARK, expect_ours, policy, static_text, templates
from topdp.views.pages.plain_words import small
from topdp.views.statement import statement_text

YAML_MARK = "# A privacy statement made by topdp"


def statement(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the statement of a run, in the order of the page, given its `run_facts`.

    Raise InputError if the run has no account yet.
    """
    if facts["privacy"] is None:
        raise InputError(
            f"Expected a run with a privacy account, but {facts['name']} has none: {facts['notes'][0]}"
        )
    made_by = {"statement": f"topdp {__version__}", "plan": facts["privacy"]["plan"]}
    return {
        "summary": _summary(facts),
        "simulated": True,
        "scope": "One record of one agent, the largest over agents",
        "made_from": "a run folder",
        "deployment": _deployment(facts),
        "guarantee": _answers(facts),
        "evaluation": _evaluation(facts),
        "not_protected": _not_protected(facts),
        "versions": {**facts["versions"], **made_by},
    }


def statement_yaml(content: dict[str, Any]) -> str:
    """Return the statement as YAML, in the order of the page."""
    body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    return f"{YAML_MARK} {__version__}. Fields of `deployment` are those of registry.opendp.org.\n{body}"


def statement_html(content: dict[str, Any]) -> str:
    """Return a page to print, without scripts."""
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


def _relied_on(facts: dict[str, Any]) -> AnswerKind:
    """Return the answer on which the statement relies: the run's own if it is proved, else the worst case."""
    kind = ANSWERS[facts["guarantee"]["answer"]]
    return kind if kind.proved else WORST_CASE


def _against(facts: dict[str, Any]) -> str:
    return _relied_on(facts).against(facts["guarantee"]["colluders"])


def _summary(facts: dict[str, Any]) -> list[str]:
    """Return a few sentences, the most important first."""
    sentences = [
        *_promise(facts),
        "This is a simulated run: all agents ran on one machine. It shows how private the method is with "
        "these settings, not how any real system was operated.",
    ]
    worst = facts["privacy"]["epsilon"][WORST_CASE.key]
    if _relied_on(facts) is not WORST_CASE and facts["graph"]["agents"] > 1:
        sentences.append(statement_text.all_others_sentence(None if worst is None else f"{worst:.4g}"))
    if facts["state"] != "done":
        sentences.append(f"{facts['notes'][0]} The numbers are those of the whole plan.")
    return sentences


def _promise(facts: dict[str, Any]) -> list[str]:
    privacy, answer, relied = facts["privacy"], facts["guarantee"]["answer"], _relied_on(facts).key
    epsilon, agents = privacy["epsilon"][relied], facts["graph"]["agents"]
    if privacy["status"][relied] == "infinite":
        return ["This run protects nobody: noise does not hide what some agents send, and ε is infinite."]
    if epsilon is None:
        reason = privacy.get("reasons", {}).get(relied, "it was refused.")
        return [f"No guarantee is known for this run: {reason}"]
    trained = f"{agents} agents trained" if agents > 1 else "One party trained"
    sentences = [
        f"{trained} a model so that it is hard to tell, for {_against(facts)}, whether any one record was "
        f"used: ε = {epsilon:.4g} at δ = {small(privacy['delta'])}."
    ]
    if answer != relied:
        other = privacy["epsilon"][answer]
        number = "no number" if other is None else f"ε = {other:.4g}"
        sentences.append(
            f"Another answer, {answer} ({number}), determined the noise. It guarantees nothing: do not rely "
            "on it."
        )
    power = facts["power"][relied]
    return [*sentences, statement_text.attacker_sentence([power["0.01"], power["0.05"]])]


def _answers(facts: dict[str, Any]) -> dict[str, Any]:
    """Return every answer: the observer, its numbers, and what an attacker achieves."""
    privacy, answers = facts["privacy"], {}
    for kind in BY_RANK:
        status = privacy["status"].get(kind.key, "not asked")
        if status == "not asked":
            continue
        power = facts["power"].get(kind.key, {})
        answers[kind.key] = statement_text.answer_facts(
            kind,
            privacy["colluders"],
            status,
            privacy["epsilon"][kind.key],
            privacy["mu"][kind.key],
            [power.get("0.01"), power.get("0.05")],
        )
    return {"budget_on": privacy["guarantee"], "delta": privacy["delta"], "answers": answers}


def _not_protected(facts: dict[str, Any]) -> list[str]:
    """Return a sentence for each risk that the guarantee does not cover."""
    agents, colluders = facts["graph"]["agents"], facts["guarantee"]["colluders"]
    kind = ANSWERS[facts["guarantee"]["answer"]]
    sentences = []
    if not kind.proved:
        sentences.append(statement_text.unproved_sentence(kind.key))
    if agents > 1 and kind.counts_colluders:
        sentences.append(
            f"More than {colluders} agent{'s' if colluders > 1 else ''} pooling what they see: for larger "
            "groups, up to all other agents, the worst case holds."
        )
    sentences += [
        "That a person's organisation takes part, or how many records it has.",
        statement_text.NOT_PROTECTED["model"],
        "Several records of one person: ε is that of one record.",
        "Test records and their labels: accuracies are computed on them without noise.",
        statement_text.NOT_PROTECTED["tuning"],
        "Further runs on the same records: each adds to this one.",
        "Timing, memory, logs, stolen machines, and the last digits of floating-point numbers.",
        "Wrong or hostile models: privacy does not prevent anybody from spoiling the training.",
        "Real agents: in this simulated run one machine held all records, and one seed determined all noise.",
    ]
    if facts["settings"]["attack"]["name"] != "none":
        sentences.append("This simulation included hostile agents: its accuracies are those under attack.")
    return sentences


def _deployment(facts: dict[str, Any]) -> dict[str, Any]:
    privacy, guarantee, settings = facts["privacy"], facts["guarantee"], facts["settings"]
    relied, records, agents = _relied_on(facts).key, facts["data"]["records"], facts["graph"]["agents"]
    public = ["test records and their labels, where the model is evaluated on them"]
    if settings["data"].get("schema"):
        public.append("the data's schema: ranges, categories, fills")
    if agents == 1:
        actors = ["The one party: is trusted with all records."]
    else:
        actors = [
            "Agents: each clips and adds noise itself, and is trusted with its own records only.",
            f"Other agents: follow the protocol; may store and study all they see; {guarantee['colluders']} "
            "may pool it.",
        ]
    return statement_text.deployment(
        name=facts["name"],
        data_curators=statement_text.TO_FILL_IN,
        description=f"A model ({facts['model']}) of {facts['data']['name']}, trained by {agents} agents with "
        f"the method {facts['method']} in {facts['rounds']} rounds.",
        adjacency=guarantee["adjacency"],
        epsilon=privacy["epsilon"][relied],
        delta=privacy["delta"],
        mu=privacy["mu"][relied],
        data_domain=f"{records['total']} records of {facts['data']['name']}, each held by one agent "
        f"({records['min']} to {records['max']} per agent)",
        further_unprotected=public,
        loss=f"The largest over agents, against {_against(facts)}. The values of every agent are in "
        "privacy.json of the run.",
        model=statement_text.trust_model(
            *actors, one_party=agents == 1, releases=f"{facts['releases']} releases"
        ),
        accounting={
            "composition": f"All {facts['releases']} releases together, with every row that the observer "
            "reads, according to the executed plan. Gaussian noise: μ is bounded, and ε follows exactly. "
            "Random batches: privacy loss distributions (dp-accounting). Rounding goes to the private side.",
            "post_processing": statement_text.POST_PROCESSING,
            "several_runs": statement_text.SEVERAL_RUNS,
            "assumptions": privacy["assumptions"],
            "warnings": privacy.get("warnings", []),
        },
        implementation=_implementation(facts),
    )


def _implementation(facts: dict[str, Any]) -> dict[str, Any]:
    settings, privacy, budget = facts["settings"], facts["privacy"], facts["guarantee"]["epsilon"]
    batches = ", ".join(
        batch["kind"] if batch["size"] is None else f"{batch['kind']} of {batch['size']}"
        for batch in privacy["batches"]
    )
    calibration = "none: the noise was given"
    if privacy["guarantee"]:
        each = f"{min(budget):g} to {max(budget):g}, by agent" if isinstance(budget, list) else f"{budget:g}"
        calibration = f"before the first round, to ε = {each} under {privacy['guarantee']}"
    return statement_text.implementation(
        clip=privacy["clip"],
        clipping=settings["privacy"]["clipping"],
        method=facts["method"],
        batches=f"; batches in which a record is used: {batches}",
        calibration={
            "sensitivity": {"least": min(privacy["sensitivity"]), "largest": max(privacy["sensitivity"])},
            "noise_calibration": calibration,
        },
        noise_source="A simulated run draws its noise from a seeded generator that is not cryptographic. "
        "Anybody who knows the seed can subtract all of the noise. The run folder contains the seed; real "
        "agents take their noise from the operating system.",
        floating_point="Noise and sums are floating-point numbers; the account is about real numbers. It is "
        "neither excluded nor counted that the last digits reveal a value (Mironov 2012).",
        verification="The accountants are tested against dense algebra, dp-accounting and attacks; `topdp "
        "audit` attacks a run with canaries.",
        tuning=" Choosing settings, features or models by looking at private records costs privacy that is "
        "not part of ε.",
    )


def _evaluation(facts: dict[str, Any]) -> dict[str, str]:
    metrics = facts["metrics"]
    utility = "Not evaluated: there are no test records, or no evaluation has taken place yet."
    if metrics is not None:
        name = metrics["names"][0]
        values = {part: metrics["values"][name][part][-1] for part in ("mean", "min", "max")}
        words = ", ".join(f"{part} {'undefined' if v is None else f'{v:.4g}'}" for part, v in values.items())
        utility = f"{name} after round {metrics['rounds'][-1]}, over agents: {words}."
    return statement_text.evaluation(
        adjacency=facts["guarantee"]["adjacency"],
        one_party=facts["graph"]["agents"] == 1,
        parameters=". They hold for the whole run, not per round or day.",
        utility=utility,
        bias="Noise and clipping affect small groups most. Accuracies of groups are not part of this "
        f"statement; agents differ as stated. Partition: {facts['settings']['data']['partition']}.",
        random_numbers="Seeded and not cryptographic: suitable for a simulation, not for secrets.",
        floating_point="Ordinary floating-point noise; attacks on its last digits are not excluded.",
        privacy_budget="For this run alone; simulated runs are not added up.",
    )
