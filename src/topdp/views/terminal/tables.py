"""Tables for people, on a terminal. They display the numbers that commands print as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.table import Column, Table
from rich.text import Text

from topdp.base.number_text import percent_rounded_up, rounded_down, rounded_up
from topdp.plan import Plan
from topdp.privacy.accounting import FALSE_ALARMS, Account
from topdp.privacy.answers import ANSWERS, WORST_CASE, answer_kind
from topdp.privacy.observers.coalitions import Coalitions
from topdp.runs import sweep_summary
from topdp.runs.config import RunConfig
from topdp.runs.epsilon_text import answer_words, delta_text, epsilon_text, unit_text
from topdp.runs.metric_labels import NO_TEST_RECORDS, between_agents, is_share, metric_names, metric_text
from topdp.runs.recommend import COMPARED_ROUNDS


def runs(summaries: Mapping[str, Mapping[str, Any]]) -> list[Table | Text]:
    """Return a table of metrics and ε with one line per run, and the reasons for missing ε."""
    first = next(iter(summaries.values()))
    privacy = first["privacy"]
    guarantee = next(filter(None, (summary["privacy"]["guarantee"] for summary in summaries.values())), None)
    answers = [
        name
        for name in privacy["epsilon"]
        if not ANSWERS[name].on_request
        or any(summary["privacy"]["status"][name] != "not asked" for summary in summaries.values())
    ]
    scores = {name: summary.get("metrics") or {} for name, summary in summaries.items()}
    metrics = list(dict.fromkeys(name for values in scores.values() for name in metric_names(values)))
    ends = "worst to best" if all(map(is_share, metrics[:1])) else "least to largest"
    meaning = f"ε at δ = {delta_text(privacy['delta'])}, largest over agents; worst case: all others together"
    if {summary["privacy"].get("unit") for summary in summaries.values()} == {"person"}:
        meaning += "; of a person"
    table = uncut(
        "method", *(metrics or ["metrics"]), "agents",
        *(f"ε\n{answer_words(name)}" for name in answers), "time",
        caption=f"{first['rounds']} rounds; agents: {ends}; {meaning}; "
        + (f"budget on: {guarantee}" if guarantee else "noise as given"),
    )  # fmt: skip
    for name, summary in summaries.items():
        values = scores[name]
        table.add_row(
            name,
            *(metric_text(metric, values[metric]["mean"]) if metric in values else "" for metric in metrics),
            *([] if metrics else ["no test set"]),
            between_agents(metrics[0], values[metrics[0]]) if metrics and metrics[0] in values else "",
            *(epsilon_text(summary["privacy"], key) for key in answers),
            f"{summary['seconds']:.0f} s",
        )
    notes = [] if metrics else [NO_TEST_RECORDS]
    redrawable = {name: summary["redrawable_noise"] for name, summary in summaries.items()}
    notes += [f"{name}: {words}" for name, words in redrawable.items() if words]
    for name, summary in summaries.items():
        notes += [f"{name}, {words}" for words in missing_epsilons(summary["privacy"])]
        if words := summary["privacy"].get("prepared"):
            notes.append(f"{name}: {words}")
    return [table, *map(Text, notes)]


def missing_epsilons(privacy: Mapping[str, Any]) -> list[str]:
    """Return one line for each reason why an ε is missing. The line lists the answers without an ε."""
    answers: dict[str, list[str]] = {}
    for name, reason in privacy.get("reasons", {}).items():
        answers.setdefault(reason, []).append(answer_words(name))
    return [f"ε {', '.join(names)}: {reason}" for reason, names in answers.items()]


def options(methods: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the noise that each method would leave in the models, in the given order."""
    table = uncut(
        "method", "noise in the average", "between agents", "sent a round", "why not",
        caption=f"noise: variance over that of pooled records after {COMPARED_ROUNDS} equal, plain steps (a "
        "plan has its own steps); sent: estimates to each neighbour",
    )  # fmt: skip
    for method in methods:
        if method["noise"] is None:
            table.add_row(method["method"], "", "", "", method["reason"])
        else:
            noise, between = f"{method['noise']:.3g}", f"{method['between']:.3g}"
            table.add_row(method["method"], noise, between, str(method["sent"]))
    return table


def uncut(*headers: str, **options: Any) -> Table:
    """Return an empty table that wraps cells on a narrow terminal instead of truncating numbers."""
    return Table(*(Column(header, overflow="fold") for header in headers), **options)


def account(config: RunConfig, plan: Plan, result: Account, groups: Coalitions | None) -> list[Table | Text]:
    """Return the tables of an account, and the assumptions of its answers in words.

    The tables show the plan, all answers, the ε of every agent, and, unless `groups` is None, coalitions.
    """
    exposure, privacy = result.analysis.exposure(), result.summary()
    rows = uncut("", "", show_header=False, title="How private", title_justify="left")
    analysis = result.analysis
    rows.add_row("δ, adjacency", f"{delta_text(result.delta)}, {analysis.adjacency}")
    rows.add_row("protected", unit_text(analysis.unit, analysis.sites))
    rows.add_row("plan", f"{plan.protocol}, {plan.agents} agents, {plan.releases} releases")
    rows.add_row("sensitivity", least_to_largest(exposure.sensitivity))
    rows.add_row("σ, noise per unit of clip", least_to_largest(plan.full_scale / config.privacy.clip))
    weights = [batches.weight for batches in exposure.batches]
    if min(weights) < 1:
        rows.add_row("weights of agents", least_to_largest(np.array(weights)))
    rows.add_row(f"a {analysis.unit} is used", ", ".join(dict.fromkeys(map(str, exposure.batches))))
    for warning in result.warnings:
        rows.add_row("warning", warning)
    if result.prepared is not None:
        rows.add_row("before training", result.prepared)
    for key, reason in privacy.get("reasons", {}).items():
        rows.add_row(f"ε {answer_words(key)}", f"{epsilon_text(privacy, key)}: {reason}")
    of_groups = [] if groups is None else [_coalitions(result, groups)]
    assumptions = (Text(f"{answer_words(key)}: {ANSWERS[key].assumptions}") for key in _asked(result))
    return [rows, _answers(result), _per_agent(config, result), *of_groups, *assumptions]


def _asked(result: Account) -> list[str]:
    return [name for name, answer in result.answers.items() if answer.asked]


def _answers(result: Account) -> Table:
    """Return a table with the largest ε and μ over agents, and the best attacker's power, per answer."""
    table = uncut(
        "", "ε", "μ", *(f"power at {share:.0%}" for share in FALSE_ALARMS),
        caption="Largest over agents. Power: how often the best attacker recognises a "
        f"{result.analysis.unit}, with false alarms in that share of the cases without it.",
    )  # fmt: skip
    privacy = result.summary()
    for name in _asked(result):
        answer = result.answers[name]
        powers = [answer.power(share) for share in FALSE_ALARMS]
        mu = privacy["mu"][name]
        mark = " (budget)" if ANSWERS[name].name == result.guarantee else ""
        table.add_row(
            answer_words(name) + mark,
            epsilon_text(privacy, name),
            "" if mu is None else rounded_up(mu),
            *("" if power is None else f"{percent_rounded_up(float(power.max()), 1)}%" for power in powers),
        )
    return table


def least_to_largest(values: Sequence[float] | np.ndarray) -> str:
    return " to ".join(dict.fromkeys(f"{value:.4g}" for value in (min(values), max(values))))


def _per_agent(config: RunConfig, result: Account) -> Table:
    budget = np.broadcast_to(np.asarray(config.privacy.epsilon, float), len(result.analysis.batches))
    chosen = result.answer(config.privacy.guarantee).epsilon
    calibrated = result.guarantee is not None and config.privacy.sigma is None
    answers = {name: result.answers[name] for name in _asked(result)}
    named = [name for name, answer in answers.items() if any(answer.observers or ())]
    own_deltas = isinstance(result.delta, list)
    table = uncut(
        "agent", *(["δ"] if own_deltas else []), *(f"ε\n{answer_words(name)}" for name in answers),
        *(f"sees most, {answer_words(name)}" for name in named), "share of the budget",
    )  # fmt: skip
    for agent, limit in enumerate(budget):
        table.add_row(
            str(agent),
            *([f"{result.deltas[agent]:g}"] if own_deltas else []),
            *(_number(answer.epsilon, agent) for answer in answers.values()),
            *(" ".join(map(str, (answers[name].observers or ())[agent])) for name in named),
            f"{chosen[agent] / limit:.1%}" if calibrated and chosen is not None else "",
        )
    return table


def _coalitions(result: Account, groups: Coalitions) -> Table:
    table = uncut("agent", "worst coalition", "ε", title=groups.statement, title_justify="left")
    epsilon, members = groups.worst_epsilon(result.delta)
    for agent, group in enumerate(members):
        table.add_row(str(agent), " ".join(map(str, group)), _number(epsilon, agent))
    return table


def _number(values: np.ndarray | None, agent: int) -> str:
    if values is None:
        return "refused"
    return rounded_up(float(values[agent]))


def facts(title: str, result: Mapping[str, Any]) -> Table:
    """Return a table of the content that `--json` prints, with one line per key."""
    table = uncut("", "", show_header=False, title=title, title_justify="left")
    for key, value in result.items():
        table.add_row(key.replace("_", " "), _words(value))
    return table


def _words(value: object) -> str:
    if value is None:
        return "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def audit(result: Mapping[str, Any]) -> list[Table | Text]:
    """Return the findings of an audit: lower bounds per kind of canary, proved upper bounds, the verdict."""
    owner = result["owner"]
    table = uncut(
        "canaries", "μ expected", "μ found", "μ at least", "ε at least", "ε at least, distribution-free",
        title=f"Agent {owner} audited by {result['observer']}", title_justify="left",
        caption=f"all at once with {result['confidence']:.4g} confidence; δ = {result['delta']:g}; "
        f"seen: {result['sees']}",
    )  # fmt: skip
    for name, kind in result["kinds"].items():
        table.add_row(
            f"{kind['canaries']} {name}",
            *(_or_none(kind[key]) for key in ("mu_expected", "mu_estimate")),
            *(
                "" if kind[key] is None else rounded_down(kind[key])
                for key in ("mu_lower", "epsilon_gaussian", "epsilon_distribution_free")
            ),
        )
    proved_bounds = {"proved": result["epsilon_proved"], **result["epsilon_of_owner"]}
    proved = uncut("", "ε")
    for name, value in proved_bounds.items():
        if result["status"][name] != "not asked":
            label = "proved for this observer" if name == "proved" else f"agent {owner}: {answer_words(name)}"
            proved.add_row(label, result["status"][name] if value is None else rounded_up(value))
    checks = uncut(
        "check", "tests", "most unusual", "planned", "p-value",
        title="Whether the run follows its plan", title_justify="left",
        caption=f"flags a correct run with probability at most {100 * result['false_flags']:g}%"
        + ("" if "records" in result["checks"] else "; without planted records: clipping is not tested"),
    )  # fmt: skip
    for name, check in result["checks"].items():
        numbers = (f"{check[key]:.4g}" for key in ("found", "planned"))
        p = f"{check['p']:.2g}" + (" (flagged)" if check["flagged"] else "")
        checks.add_row(name, str(check["tests"]), *numbers, p)
    return [table, checks, proved, Text(result["verdict"])]


def _or_none(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def calibrations(result: Mapping[str, Any]) -> Table:
    """Return a table with one line per calibration: its σ, the ratio to the tight σ, and the exact ε."""
    table = uncut(
        "calibration", "σ", "noise std", "over tight", "exactly ε", "remark",
        title=f"ε = {result['epsilon']:g}, δ = {result['delta']:g}, {result['releases']} releases, "
        f"{result['records']} records ({result['batches']['kind']} batches of {result['batches']['size']})",
        caption=f"clip {result['clip']:g}, {result['adjacency']}, sensitivity {result['sensitivity']:.4g}",
        title_justify="left",
    )  # fmt: skip
    tight = result["sigma"]["tight"]
    for name, sigma in result["sigma"].items():
        exact = result["exact_epsilon"][name]
        table.add_row(
            name,
            "refused" if sigma is None else f"{sigma:.5g}",
            "" if sigma is None else f"{result['noise_std'][name]:.5g}",
            "" if sigma is None or tight is None else f"{sigma / tight:.3f}",
            "" if exact is None else rounded_up(exact),
            result.get("remarks", {}).get(name, ""),
        )
    return table


def captions(figures: Sequence[Mapping[str, str]]) -> Table:
    """Return a table of the figures that `topdp reproduce` makes, with their commands."""
    table = uncut("figure", "what it shows", "command")
    for figure in figures:
        table.add_row(figure["figure"], figure["caption"], figure["command"])
    return table


def verdicts(result: list[dict[str, str]]) -> Table:
    """Return a table with one line per claim and its verdict under each lens."""
    lenses = list(dict.fromkeys(verdict["lens"] for verdict in result))
    table = uncut("figure", "claim", *lenses)
    by_claim: dict[tuple[str, str], dict[str, str]] = {}
    for verdict in result:
        by_claim.setdefault((verdict["figure"], verdict["claim"]), {})[verdict["lens"]] = verdict["verdict"]
    for (figure, claim), words in by_claim.items():
        table.add_row(figure, claim, *(words.get(lens, "") for lens in lenses))
    return table


def sweep(spreads: Sequence[sweep_summary.Spread]) -> Table:
    """Return a table of a sweep, with one line per combination of settings."""
    metric = next(iter(sweep_summary.metric_names(spreads)), None)
    guarantees = {run["privacy"]["guarantee"] for spread in spreads for run in spread.runs} - {None}
    answers = [*sorted({answer_kind(name).key for name in guarantees} - {WORST_CASE.key}), WORST_CASE.key]
    short = [sweep_summary.short_key(key) for key in spreads[0].chosen]
    keys = short if len(set(short)) == len(short) else list(spreads[0].chosen)
    result = uncut(
        *keys, metric or "metric", "n", *(f"ε\n{answer_words(name)}" for name in answers), "time",
        caption="mean ± standard deviation over n seeds, of the mean over agents; ε of one run, largest over "
        "agents",
    )  # fmt: skip
    for spread in spreads:
        diverged = len(spread.runs) - len(spread.done)
        seconds = sum(run["seconds"] for run in spread.done)
        count = f"{len(spread.done)}" + (f" ({diverged} diverged)" if diverged else "")
        result.add_row(
            *spread.chosen.values(),
            _metric_words(metric, spread.of(metric)) if metric else "no test set",
            count,
            *(spread.epsilon(name) for name in answers),
            f"{seconds:.0f} s",
        )
    return result


def _metric_words(metric: str, spread: Mapping[str, Any]) -> str:
    """Return the mean of a metric, with its standard deviation if it has one, as text.

    >>> _metric_words("accuracy", {"mean": 0.9714, "deviation": 0.0021, "n": 3})
    '97.14% ± 0.21'
    >>> _metric_words("mae", {"mean": 1.23456, "deviation": None, "n": 1})
    '1.235'
    """
    if spread["mean"] is None:
        return "none"
    share = is_share(metric)
    mean = f"{spread['mean']:.2%}" if share else f"{spread['mean']:.4g}"
    if spread["deviation"] is None:
        return mean
    return f"{mean} ± " + (f"{100 * spread['deviation']:.2f}" if share else f"{spread['deviation']:.2g}")
