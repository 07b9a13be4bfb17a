"""What each member gains by joining, for the terminal and the planner page. Reads `gains` of `topdp plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from topdp.base.number_text import rounded_down
from topdp.runs.metric_labels import metric_text
from topdp.views.terminal import tables

GAIN_HEADERS = ("members", "records", "ε", "noise alone", "noise together", "joining gives")
GAINS_CAPTION = (
    "Noise: variance in the member's model at the end, over that of pooled records. Alone: on its own "
    "records, with its own ε and δ and the same steps. The records of others also change a model."
)
EXPECTED_CAPTION = " Expected {metric}: trained on half of {records} public test records with that noise."
MAX_GAIN_ROWS = 40
LISTED_MEMBERS = 5


def gains_table(gains: Mapping[str, Any]) -> Table | None:
    """Return the table of gains; None if there are none."""
    rows = gain_rows(gains)
    if not rows:
        return None
    expected = gains.get("expected")
    scores = [] if expected is None else [f"{expected['metric']} {how}" for how in ("alone", "together")]
    caption = GAINS_CAPTION + (EXPECTED_CAPTION.format(**expected) if expected else "")
    table = tables.uncut(
        *GAIN_HEADERS, *scores, title="What each member gains", title_justify="left", caption=caption
    )
    for row in rows:
        table.add_row(*row)
    return table


def gain_rows(gains: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the table. Members with equal numbers share a row."""
    if gains["alone"] is None:
        return []
    members: dict[tuple[str, ...], list[int]] = {}
    facts = zip(gains["records"], gains["epsilon"], gains["alone"], gains["together"], strict=True)
    expected = gains.get("expected")
    for member, (records, epsilon, alone, together) in enumerate(facts):
        cells = [str(records), f"{epsilon:.4g}", f"{alone:.3g}", f"{together:.3g}", _change(alone, together)]
        if expected is not None:
            scores = (expected[how][member] for how in ("alone", "together"))
            cells += ["" if it is None else metric_text(expected["metric"], it) for it in scores]
        members.setdefault(tuple(cells), []).append(member)
    rows = [[_listed(who), *cells] for cells, who in members.items()]
    if len(rows) > MAX_GAIN_ROWS:
        more, empty = f"and {len(rows) - MAX_GAIN_ROWS} more rows in --json", [""] * (len(rows[0]) - 1)
        rows = [*rows[:MAX_GAIN_ROWS], [more, *empty]]
    return rows


def gain_remarks(gains: Mapping[str, Any]) -> list[str]:
    """Return sentences about members that gain nothing, and about members that cost the others."""
    if gains["alone"] is None:
        return []
    pairs = zip(gains["alone"], gains["together"], strict=True)
    worse = [member for member, (alone, together) in enumerate(pairs) if together >= alone]
    words = []
    if worse:
        words.append(
            f"{_subject(worse)} no less noise together than alone. The records of others may still help."
        )
    costly = gains["costly"]
    words += map(_cost, costly[:LISTED_MEMBERS])
    if len(costly) > LISTED_MEMBERS:
        words.append(f"{len(costly) - LISTED_MEMBERS} more members make it worse; --json lists them.")
    return words


def _cost(cost: Mapping[str, Any]) -> str:
    changes = [f"with {setting}" for setting in cost["settings"]]
    if cost["epsilon"] is not None:
        changes.append(f"with an ε of about {cost['epsilon']:.3g} for it")
    if cost["weight"] is not None:
        changes.append(f"with a weight of about {rounded_down(cost['weight'], 2)} for it (privacy.weights)")
    remedy = f"It would not {', or '.join(changes)}. " if changes else ""
    return (
        f"Member {cost['agent']} makes the average worse for the others: without it, they would have about "
        f"{cost['noise_of_others']:.0%} of the noise. {remedy}Estimated from budgets and record counts, not "
        "from plans without the member."
    )


def _change(alone: float, together: float) -> str:
    if together == 0:
        return "no noise"
    ratio = alone / together
    return f"{ratio:.3g} times less noise" if ratio > 1 else f"{1 / ratio:.3g} times the noise"


def _listed(members: Sequence[int]) -> str:
    if len(members) == members[-1] - members[0] + 1 and len(members) > 2:
        return f"{members[0]} to {members[-1]}"
    more = len(members) - LISTED_MEMBERS
    return ", ".join(map(str, members[:LISTED_MEMBERS])) + (f" and {more} more" if more > 0 else "")


def _subject(members: Sequence[int]) -> str:
    return f"Member {members[0]} has" if len(members) == 1 else f"Members {_listed(members)} have"
