"""The table of `topdp plan`: one column per setting. Reads what `topdp plan --json` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from topdp.base.number_text import percent_rounded_up, rounded_up
from topdp.privacy.answers import ANSWERS, answer_kind
from topdp.runs.epsilon_text import answer_words, epsilon_text
from topdp.views.terminal import tables
from topdp.views.terminal.gains_table import gain_remarks, gains_table


def planned(answer: Mapping[str, Any]) -> list[Table | Text]:
    """Return the table of settings, the explanations of their answers, and the recommendation."""
    settings = answer["settings"]
    table = tables.uncut(
        "",
        *(setting["label"] or "this setting" for setting in settings),
        caption=PLAN_TABLE_CAPTION.format(unit=" or ".join(dict.fromkeys(each["unit"] for each in settings))),
    )
    for name, cells in lines(settings):
        table.add_row(name, *cells)
    parts: list[Table | Text] = [table]
    for setting in settings:
        prefix = f"{setting['label']}: " if setting["label"] else ""
        if (gains := gains_table(setting["gains"])) is not None:
            parts += [Text(prefix), gains] if prefix else [gains]
        parts += [Text(f"{prefix}{words}") for words in [*remarks(setting), *_pending(setting)]]
    shown = {name for setting in settings for name in setting["privacy"].get("assumptions", {})}
    parts += [Text(f"{kind.label}: {kind.assumptions}") for key, kind in ANSWERS.items() if key in shown]
    advice = answer["recommended"]
    if "refused" in advice:
        return [*parts, Text(f"No recommendation: {advice['refused']}")]
    return [*parts, tables.options(advice["options"]), *map(Text, advice["reasons"]), Text(advice["command"])]


PLAN_TABLE_CAPTION = (
    "ε and μ: largest over agents. Power: how often the best attacker recognises a {unit} with 1% false "
    "alarms, under the budget's answer. Noise: variance over that of pooled records. Sent: rows "
    "without the overhead of links."
)


def lines(settings: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the lines of the table: a name, and a cell for each setting."""
    columns = [_cells(setting) for setting in settings]
    return [(name, [cells[name] for cells in columns]) for name in columns[0]]


def _cells(setting: Mapping[str, Any]) -> dict[str, str]:
    answers = setting["privacy"]["status"]
    return {
        "method": setting["method"] + (" async" if setting["mode"] == "async" else ""),
        "agents, links": f"{setting['agents']}, {setting['links']} ({setting['topology']})",
        "rounds, releases": f"{setting['rounds']}, {setting['releases']}",
        "σ, noise per unit of clip": _sigma(setting),
        **{f"ε {answer_words(name)}": _epsilon(setting, name) for name in answers},
        "power at 1%": _power(setting),
        "noise in the average": _number(setting["noise"]["average"]),
        "noise between agents": _number(setting["noise"]["between"]),
        "sent a round, busiest agent": _sent(setting, "agent"),
        "sent a round, all agents": _sent(setting, "all"),
    }


def _sigma(setting: Mapping[str, Any]) -> str:
    if setting["sigma"] is not None:
        return tables.least_to_largest(setting["sigma"])
    bound = setting.get("sigma_at_most")
    return "not computed yet" + ("" if bound is None else f"; at most {tables.least_to_largest(bound)}")


def _epsilon(setting: Mapping[str, Any], name: str) -> str:
    privacy = setting["privacy"]
    mark = " (budget)" if ANSWERS[name].name == privacy.get("guarantee") else ""
    mu = privacy["mu"][name]
    return epsilon_text(privacy, name) + ("" if mu is None else f", μ {rounded_up(mu, 3)}") + mark


def _power(setting: Mapping[str, Any]) -> str:
    privacy = setting["privacy"]
    guarantee = privacy.get("guarantee")
    power = privacy["power"].get(answer_kind(guarantee).key, {}).get("0.01") if guarantee else None
    return "" if power is None else f"{percent_rounded_up(power, 1)}%"


def _sent(setting: Mapping[str, Any], who: str) -> str:
    sent = setting["traffic"]
    rows, size = sent["rows_a_round"][who], sent["bytes_a_round"][who]
    return f"{rows:.4g} row{'' if rows == 1 else 's'}" + ("" if size is None else f", {decimal(size)}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def remarks(setting: Mapping[str, Any]) -> list[str]:
    """Return warnings, reasons for missing numbers, and automatically chosen values."""
    privacy, chosen = setting["privacy"], setting["chosen"]
    notes = tables.missing_epsilons(privacy)
    if chosen:
        values = (
            f"{key} {value if isinstance(value, str) else f'{value:.4g}'}" for key, value in chosen.items()
        )
        notes.append(f"chosen: {', '.join(values)}")
    for what in ("noise", "traffic"):
        if "reason" in setting[what]:
            notes.append(f"{what}: {setting[what]['reason']}")
    notes += gain_remarks(setting["gains"])
    return [*privacy.get("warnings", ()), *notes]


def _pending(setting: Mapping[str, Any]) -> list[str]:
    """Return a sentence with the answers that are not computed yet, or nothing if there are none."""
    names = ", ".join(map(answer_words, setting["pending"]))
    text = f"not computed yet: {names}; about {setting['seconds_left']:.0f} s without --quick"
    return [text] if names else []
