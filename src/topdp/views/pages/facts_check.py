"""Check that the content of a run folder can be shown: valid numbers, and a consistent account.

Settings and plan are checked where they are read. Damaged content is refused with a message, so that no page
shows half of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topdp.privacy.accounting import Account
from topdp.runs.metric_labels import metric_names
from topdp.runs.run_folder import RunFolderError

SPREAD_KEYS = ("mean", "min", "max")
REQUIRED_PRIVACY_KEYS = ("epsilon", "mu", "status", "epsilon_per_agent", "mu_per_agent")


def expect_info(info: Mapping[str, Any], path: Path) -> None:
    """Raise RunFolderError unless the fields of run.json that a page shows have the right types."""
    stopped, seconds = info.get("stopped"), info.get("seconds")
    faults = {
        "state": not isinstance(info.get("state"), str),
        "seconds": seconds is not None and not _is_number(seconds),
        "stopped": stopped is not None
        and not (
            isinstance(stopped, dict)
            and type(stopped.get("round")) is int
            and isinstance(stopped.get("reason"), str)
        ),
        "agents": info.get("federation") is not None and not _are_results(info.get("agents")),
        **{
            name: info.get(name) is not None and not isinstance(info[name], str)
            for name in ("topdp", "python", "torch", "device", "federation")
        },
    }
    _refuse([name for name, wrong in faults.items() if wrong], path / "run.json")


def _are_results(agents: Any) -> bool:
    return isinstance(agents, list) and all(
        isinstance(result, dict) and isinstance(result.get("agent"), str) for result in agents
    )


def expect_lines(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Raise RunFolderError unless metrics.jsonl has increasing rounds and metrics that are finite or null."""
    before = -1
    for number, line in enumerate(lines, 1):
        wrong = [] if type(line["round"]) is int and line["round"] > before else ["round"]
        before = line["round"]
        names = {*metric_names(line), *(["loss"] if "loss" in line else [])}
        wrong += sorted(name for name in names if not _is_spread(line[name]))
        wrong += sorted(
            name
            for name, value in line.items()
            if name.endswith("_per_agent") and not (isinstance(value, list) and all(map(_is_value, value)))
        )
        _refuse(wrong, f"line {number} of {path / 'metrics.jsonl'}")


def expect_agreed(privacy: Mapping[str, Any], account: Account, path: Path) -> None:
    """Raise RunFolderError unless the numbers in privacy.json are equal to those of `account`."""
    expected = json.loads(json.dumps(account.details()))
    wrong = [
        name
        for name, value in expected.items()
        if name in privacy and name not in ("pairs", "assumptions") and privacy[name] != value
    ]
    wrong += [name for name in REQUIRED_PRIVACY_KEYS if name not in privacy]
    assumptions = privacy.get("assumptions")
    if not isinstance(assumptions, dict) or not all(isinstance(text, str) for text in assumptions.values()):
        wrong.append("assumptions")
    _refuse(wrong, path / "privacy.json")


def expect_text(facts: Mapping[str, Any], path: Path) -> None:
    """Raise RunFolderError if `facts` contain numbers that are not finite, or text that is not Unicode."""
    try:
        json.dumps(facts, allow_nan=False, ensure_ascii=False).encode()
    except ValueError as error:
        raise RunFolderError(
            f"Expected finite numbers and valid text in the run in {path}, but cannot encode them: {error}. "
            "Its files were changed or are damaged."
        ) from error


def _is_number(value: object) -> bool:
    """Return whether `value` is a finite number that fits into a float."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _is_value(value: object) -> bool:
    """Return whether `value` is a number or null (undefined), or a list of these, one per class."""
    if isinstance(value, list):
        return all(number is None or _is_number(number) for number in value)
    return value is None or _is_number(value)


def _is_spread(value: object) -> bool:
    """Return whether `value` has mean, min and max of one shape, as `between_agents` and curves require."""
    if not isinstance(value, Mapping):
        return False
    parts = [value.get(part) for part in SPREAD_KEYS]
    return all(map(_is_value, parts)) and len({isinstance(part, list) for part in parts}) == 1


def _refuse(wrong: Sequence[str], where: object) -> None:
    if wrong:
        raise RunFolderError(
            f"Expected the content that topdp writes in {where}, got invalid values of "
            f"{', '.join(wrong)[:200]}. The file was changed or is damaged."
        )
