"""Tables for people, on a terminal. Reads what the commands print as JSON; computes nothing of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.table import Column, Table
from rich.text import Text

from topdp.plan import Plan
from topdp.privacy.account import ASSUMPTIONS, Account
from topdp.privacy.observers.coalitions import Coalitions
from topdp.settings.config import RunConfig

ANSWERS = ("claimed", "view", "worst_case")


def runs(summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """One line a run: accuracy, and the three epsilons beside it."""
    first = next(iter(summaries.values()))
    privacy, met = first["privacy"], first["privacy"]["guarantee"]
    meaning = f"ε at δ = {privacy['delta']:g}, largest over agents; worst case: all others together"
    table = uncut(
        "method", "accuracy", "agents", "ε claimed", "ε view", "ε worst case", "time",
        caption=f"{first['rounds']} rounds; agents: worst to best; {meaning}; "
        + (f"budget on: {met}" if met else "noise as given"),
    )  # fmt: skip
    for name, summary in summaries.items():
        accuracy = summary["accuracy"]
        table.add_row(
            name,
            f"{accuracy['mean']:.2%}" if accuracy else "no test set",
            f"{100 * accuracy['min']:.1f}-{100 * accuracy['max']:.1f}" if accuracy else "",
            *(epsilon(summary["privacy"], key) for key in ANSWERS),
            f"{summary['seconds']:.0f} s",
        )
    return table


def uncut(*headers: str, **options: Any) -> Table:
    """A table which, on a narrow terminal, goes on in the next line: of a number nothing is left out."""
    return Table(*(Column(header, overflow="fold") for header in headers), **options)


def epsilon(privacy: Mapping[str, Any], key: str) -> str:
    """A number, `infinite` or `refused`; never anything in between."""
    value = privacy["epsilon"][key]
    return str(privacy["status"][key]) if value is None else f"{value:.4g}"


def account(config: RunConfig, plan: Plan, found: Account, together: Coalitions | None) -> list[Table | Text]:
    """The three answers, who sees most of whom, and the assumptions in words."""
    exposure, privacy = found.analysis.exposure(), found.summary()
    rows = uncut("", "", show_header=False, title="How private", title_justify="left")
    rows.add_row("δ, adjacency", f"{found.delta:g}, {found.analysis.adjacency}")
    rows.add_row("plan", f"{plan.protocol}, {plan.agents} agents, {plan.releases} releases")
    rows.add_row("sensitivity", _spread(exposure.sensitivity))
    noise = plan.full_scale / config.privacy.clip
    rows.add_row("σ, noise per unit of clip", _spread(noise))
    rows.add_row("a record is used", ", ".join(dict.fromkeys(map(str, exposure.batches))))
    for key in ANSWERS:
        reason = privacy.get("reasons", {}).get(key)
        rows.add_row(f"ε {key.replace('_', ' ')}", epsilon(privacy, key) + (f": {reason}" if reason else ""))
    for warning in found.warnings:
        rows.add_row("warning", warning)
    parts: list[Table | Text] = [rows, _per_agent(config, found)]
    if together is not None:
        parts.append(_coalitions(found, together))
    parts.extend(Text(f"{key.replace('_', ' ')}: {text}") for key, text in ASSUMPTIONS.items())
    return parts


def _spread(values: np.ndarray) -> str:
    return " to ".join(dict.fromkeys(f"{value:.4g}" for value in (values.min(), values.max())))


def _per_agent(config: RunConfig, found: Account) -> Table:
    budget = np.broadcast_to(np.asarray(config.privacy.epsilon, float), len(found.analysis.batches))
    chosen = found.answer(config.privacy.guarantee).epsilon
    table = uncut("agent", "ε claimed", "ε view", "who sees most", "ε worst case", "share of the budget")
    for agent, limit in enumerate(budget):
        each = [_number(answer.epsilon, agent) for answer in found.answers.values()]
        table.add_row(
            str(agent),
            each[0],
            each[1],
            _sees_most(found, agent),
            each[2],
            "" if chosen is None or config.privacy.sigma is not None else f"{chosen[agent] / limit:.1%}",
        )
    return table


def _sees_most(found: Account, agent: int) -> str:
    if found.seen is None or found.seen.upper is None or agent in found.seen.samples:
        return ""
    row = np.where(found.seen.asked[agent], found.seen.upper[agent], -1.0)
    return str(found.seen.observers[int(row.argmax())][0])


def _coalitions(found: Account, together: Coalitions) -> Table:
    table = uncut("agent", "worst coalition", "ε", title=together.statement, title_justify="left")
    epsilon, members = together.worst_epsilon(found.delta)
    for agent, group in enumerate(members):
        table.add_row(str(agent), " ".join(map(str, group)), _number(epsilon, agent))
    return table


def _number(values: np.ndarray | None, agent: int) -> str:
    if values is None:
        return "refused"
    return f"{values[agent]:.4g}" if np.isfinite(values[agent]) else "infinite"


def facts(title: str, found: Mapping[str, Any]) -> Table:
    """What `--json` prints, in words: one line a key."""
    table = uncut("", "", show_header=False, title=title, title_justify="left")
    for key, value in found.items():
        table.add_row(key.replace("_", " "), _words(value))
    return table


def _words(value: object) -> str:
    if value is None:
        return "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(one)}" for key, one in value.items()) or "none"
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def calibrations(found: Mapping[str, Any]) -> Table:
    """σ by every calibration, relative to the least, with what the same noise exactly is."""
    table = uncut(
        "calibration", "σ", "noise std", "over tight", "exactly ε", "remark",
        title=f"ε = {found['epsilon']:g}, δ = {found['delta']:g}, {found['releases']} releases, "
        f"{found['records']} records ({found['batches']['kind']} batches of {found['batches']['size']})",
        caption=f"clip {found['clip']:g}, {found['adjacency']}, sensitivity {found['sensitivity']:.4g}",
        title_justify="left",
    )  # fmt: skip
    tight = found["sigma"]["tight"]
    for name, sigma in found["sigma"].items():
        exact = found["exact_epsilon"][name]
        table.add_row(
            name,
            "refused" if sigma is None else f"{sigma:.5g}",
            "" if sigma is None else f"{found['noise_std'][name]:.5g}",
            "" if sigma is None or tight is None else f"{sigma / tight:.3f}",
            "" if exact is None else f"{exact:.4g}",
            found.get("remarks", {}).get(name, ""),
        )
    return table


def verdicts(found: list[dict[str, str]]) -> Table:
    """One line a claim, with what became of it under each lens."""
    lenses = list(dict.fromkeys(one["lens"] for one in found))
    table = uncut("figure", "claim", *lenses)
    by_claim: dict[tuple[str, str], dict[str, str]] = {}
    for one in found:
        by_claim.setdefault((one["figure"], one["claim"]), {})[one["lens"]] = one["verdict"]
    for (figure, claim), words in by_claim.items():
        table.add_row(figure, claim, *(words.get(lens, "") for lens in lenses))
    return table
