"""The result of a run as one line and as an HTML table, for Python sessions and notebooks. No records."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from topdp.runs.epsilon_text import answer_words, delta_text, epsilon_text
from topdp.runs.metric_labels import NO_TEST_RECORDS, between_agents, metric_names, metric_text

if TYPE_CHECKING:
    from topdp.runs.result import Result


def result_line(result: Result) -> str:
    """Return the result as one line of text."""
    parts = [f"Result({result.config.method.name}", f"{len(result.estimates)} agents", _rounds(result)]
    parts += [f"{name} {value}" for name, value, _ in _metrics(result)]
    privacy = result.privacy.summary()
    computed = [key for key, answer in result.privacy.answers.items() if answer.asked]
    named = [key for key in computed if result.privacy.guarantee in (None, key.replace("_", "-"))]
    parts += [f"ε {answer_words(key)} {epsilon_text(privacy, key)}" for key in named]
    return ", ".join([*parts, f"δ {delta_text(privacy['delta'])}, {result.seconds:.1f} s)"])


def result_html(result: Result) -> str:
    """Return the result as an HTML table: metrics, and every ε that was computed."""
    privacy = result.privacy.summary()
    rows = [("method", result.config.method.name, f"{len(result.estimates)} agents, {_rounds(result)}")]
    rows += _metrics(result) or [("metrics", "", NO_TEST_RECORDS)]
    for key, answer in result.privacy.answers.items():
        if answer.asked:
            guarantee = "guarantee" if result.privacy.guarantee == key.replace("_", "-") else ""
            rows.append((f"ε {answer_words(key)}", epsilon_text(privacy, key), guarantee))
    rows.append(("δ", delta_text(privacy["delta"]), str(privacy["adjacency"])))
    if result.folder is not None:
        rows.append(("folder", str(result.folder), ""))
    notes = [note for note in (result.redrawable_noise, result.stopped and result.stopped.statement) if note]
    body = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(value)}</td>"
        f"<td>{escape(note)}</td></tr>"
        for name, value, note in rows
    )
    return f"<table>{body}</table>" + "".join(f"<p>{escape(note)}</p>" for note in notes)


def _rounds(result: Result) -> str:
    return f"{result.config.rounds} rounds"


def _metrics(result: Result) -> list[tuple[str, str, str]]:
    """Return the name, the mean and the range over agents of each metric at the end."""
    scores = result.scores
    return [
        (name, metric_text(name, scores[name]["mean"]), between_agents(name, scores[name]))
        for name in metric_names(scores)
    ]
