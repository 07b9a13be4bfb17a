"""The table of `topdp plan`: one column per setting. Reads what `topdp plan --json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from topdp.privacy.answers import ANSWERS, answer_kind
from topdp.runs.epsilon_text import answer_words, epsilon_text
from topdp.views.terminal import tables


def planned(answer: Mapping[str, Any]) -> list[Table | Text]:
    """Return the settings side by side, the explanations of their answers, and the recommendation."""
    found = answer["settings"]
    table = tables.uncut("", *(one["label"] or "this setting" for one in found), caption=PLAN_TABLE_CAPTION)
    for name, cells in lines(found):
        table.add_row(name, *cells)
    parts: list[Table | Text] = [table]
    for one in found:
        before = f"{one['label']}: " if one["label"] else ""
        parts += [Text(f"{before}{words}") for words in [*remarks(one), *_left(one)]]
    asked = {name for one in found for name in one["privacy"].get("assumptions", {})}
    parts += [Text(f"{kind.label}: {kind.assumptions}") for key, kind in ANSWERS.items() if key in asked]
    advice = answer["recommended"]
    if "refused" in advice:
        return [*parts, Text(f"No recommendation: {advice['refused']}")]
    return [*parts, tables.options(advice["options"]), *map(Text, advice["reasons"]), Text(advice["command"])]


PLAN_TABLE_CAPTION = (
    "ε and μ: largest over agents. Power: how often the best attacker recognises a record with 1% false "
    "alarms, under the budget's answer. Noise: variance over that of pooled records. Sent: rows as they "
    "are, without what links add."
)


def lines(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the lines of the table: a name, and a cell for each setting."""
    known = [
        ("method", [one["method"] + (" async" if one["mode"] == "async" else "") for one in found]),
        ("agents, links", [f"{one['agents']}, {one['links']} ({one['topology']})" for one in found]),
        ("rounds, releases", [f"{one['rounds']}, {one['releases']}" for one in found]),
        ("σ, noise per unit of clip", [_sigma(one) for one in found]),
    ]
    for name in found[0]["privacy"]["status"]:
        known.append((f"ε {answer_words(name)}", [_epsilon(one, name) for one in found]))
    return [
        *known,
        ("power at 1%", [_power(one) for one in found]),
        ("noise in the average", [_number(one["noise"]["average"]) for one in found]),
        ("noise between agents", [_number(one["noise"]["between"]) for one in found]),
        ("sent a round, busiest agent", [_sent(one, "agent") for one in found]),
        ("sent a round, all agents", [_sent(one, "all") for one in found]),
    ]


def _sigma(one: Mapping[str, Any]) -> str:
    if one["sigma"] is not None:
        return _spread(one["sigma"])
    enough = one.get("sigma_at_most")
    return "not computed yet" + ("" if enough is None else f"; at most {_spread(enough)}")


def _spread(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:.4g}" for value in (min(values), max(values))))


def _epsilon(one: Mapping[str, Any], name: str) -> str:
    privacy = one["privacy"]
    met = " (budget)" if ANSWERS[name].name == privacy.get("guarantee") else ""
    mu = privacy["mu"][name]
    return epsilon_text(privacy, name) + ("" if mu is None else f", μ {mu:.3g}") + met


def _power(one: Mapping[str, Any]) -> str:
    privacy = one["privacy"]
    guarantee = privacy.get("guarantee")
    power = privacy["power"].get(answer_kind(guarantee).key, {}).get("0.01") if guarantee else None
    return "" if power is None else f"{power:.1%}"


def _sent(one: Mapping[str, Any], who: str) -> str:
    sent = one["traffic"]
    rows, size = sent["rows_a_round"][who], sent["bytes_a_round"][who]
    return f"{rows:.4g} row{'' if rows == 1 else 's'}" + ("" if size is None else f", {decimal(size)}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def remarks(one: Mapping[str, Any]) -> list[str]:
    """Return warnings, reasons for missing numbers, and automatically chosen values."""
    privacy, chosen = one["privacy"], one["chosen"]
    reasons: dict[str, list[str]] = {}
    for name, why in privacy.get("reasons", {}).items():
        reasons.setdefault(why, []).append(answer_words(name))
    said = [f"ε {', '.join(names)}: {why}" for why, names in reasons.items()]
    if chosen:
        said.append("chosen: " + ", ".join(f"{key} {value:.4g}" for key, value in chosen.items()))
    for what in ("noise", "traffic"):
        if "reason" in one[what]:
            said.append(f"{what}: {one[what]['reason']}")
    return [*privacy.get("warnings", ()), *said]


def _left(one: Mapping[str, Any]) -> list[str]:
    left = ", ".join(map(answer_words, one["pending"]))
    return [f"not computed yet: {left}; about {one['seconds_left']:.0f} s without --quick"] if left else []
