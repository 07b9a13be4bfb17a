"""Everything that a page shows about one run, as one JSON object.

The object never contains parameters, records or digests of them. Its keys:

    name, state, stopped, notes    identity and state of the run, and problems in words
    method, data, model, rounds, releases, seed, command, versions, seconds, settings
    guarantee          name, answer, words, epsilon (the budget), delta, colluders, adjacency, unit,
                       sites_per_person
    answers            all answers, the most reliable first; `common`: proved, and computed for every run
    graph              agents, names, positions, links: its edges (columns: from, to, mu, epsilon)
    metrics            names, rounds, values (name -> mean, min, max), agents (only of the last evaluation)
    privacy            privacy.json, its numbers unchanged
    federation         manifest and agents' names of a local demonstration; null for a simulated run
    power, spending    the power of an attacker; the spending curve

Missing facts are null, with a note. The account of a run is fixed before its first round, so it is read once
and cached; the progress is read each time.

**Guarantees.** An account that was changed, or belongs to another plan or other settings, is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from functools import lru_cache
from pathlib import Path
from typing import Any

from topdp.base import toml_text
from topdp.base.files import UNREADABLE_FILE_ERRORS
from topdp.errors import TopdpError
from topdp.privacy.answers import BY_RANK, AnswerKind
from topdp.runs.config import RunConfig
from topdp.runs.metric_labels import is_share, metric_names
from topdp.runs.pictures.chart_style import data_title
from topdp.runs.planning import counts_of_run, expect_account_of, expect_plan_of
from topdp.runs.resolve import resolve
from topdp.runs.run_folder import STARTING, RunFolder, RunFolderError
from topdp.runs.run_outline import analysis_of
from topdp.views.pages import facts_check, page_graph
from topdp.views.pages.page_runs import file_stamp
from topdp.views.pages.plain_words import in_utf8, state_in_words
from topdp.views.statement import privacy_costs

MAX_DRAWN_EVALUATIONS = 400
"""The most evaluations that a page shows. If there are more, it shows the first, the last and some others."""

CONFIG_SECTIONS = ("rounds", "topology", "method", "privacy", "data", "model", "train")

_SALT = secrets.token_bytes(16)  # the data of two runs can be compared in this process, and nowhere else

_FIXED_FILES = ("config.toml", "plan.npz", "privacy.json", "graph.txt")  # they do not change during a run


def run_facts(folder: RunFolder, max_seconds: float = privacy_costs.MAX_CURVE_SECONDS) -> dict[str, Any]:
    """Return the facts of the run in `folder`. Raise RunFolderError if the folder is damaged or not a run.

    `max_seconds`: the longest time, in seconds, that the spending curve may take; 0 leaves the curve out.
    """
    info = RunFolder.open(folder.path).read_json("run.json")
    facts_check.expect_info(info, folder.path)
    state = str(info["state"])
    if state == STARTING:
        return _not_begun(folder, info)
    try:
        stamps = tuple(file_stamp(folder.path / name) for name in _FIXED_FILES)
        fixed = _fixed(folder.path, stamps, max_seconds)
        progress = _progress(folder, state, info, fixed["rounds"])
    except TopdpError:
        raise
    except (*UNREADABLE_FILE_ERRORS, ArithmeticError, MemoryError) as error:
        raise RunFolderError(
            f"Expected a run written by topdp in {folder.path}, but could not read it: {error!r:.200}. "
            "Restore its files from a copy, or leave this folder out."
        ) from error
    federation = _federation(info, fixed["graph"]["agents"])
    notes = [*progress["notes"], *fixed["notes"]]
    if federation is not None:
        notes.insert(0, "A local demonstration: every agent was a process of its own on one machine.")
    facts = {**fixed, **progress, "notes": notes, "federation": federation}
    if federation is not None:
        facts["graph"] = {**fixed["graph"], "names": federation["names"]}
    facts_check.expect_text(facts, folder.path)
    return facts


def _federation(info: dict[str, Any], agents: int) -> dict[str, Any] | None:
    """Return the facts of a federation on one machine; None for a simulated run.

    `names`: of its agents. `seeded`, `rehearsal`: whether an agent had noise that others know, or recorded
    gradients without noise.
    """
    if info.get("federation") is None:
        return None
    names = [str(result["agent"]) for result in info["agents"]]
    if len(names) != agents:
        raise RunFolderError(
            f"Expected the results of {agents} agents in run.json, got those of {len(names)}."
        )
    tested = {test: any(result.get(test) for result in info["agents"]) for test in ("seeded", "rehearsal")}
    return {"manifest": info["federation"], "names": names, **tested}


def _not_begun(folder: RunFolder, info: dict[str, Any]) -> dict[str, Any]:
    missing = (
        "stopped method data model rounds releases seed noise_seed redrawable_noise command settings "
        "guarantee graph metrics privacy power spending seconds federation"
    )
    return {
        "name": _name(folder.path),
        "state": STARTING,
        **dict.fromkeys(missing.split()),
        "versions": {"topdp": info.get("topdp")},
        "notes": [state_in_words(STARTING)],
    }


@lru_cache(maxsize=64)
def _fixed(path: Path, stamps: tuple[object, ...], max_seconds: float) -> dict[str, Any]:
    """Return the facts that are fixed before the first round.

    `stamps`: the `file_stamp` of each file from which they are read, as the key of the cache.
    """
    folder = RunFolder(path)
    config, plan, counts = folder.config, folder.plan, counts_of_run(folder)
    _expect_whole(folder)
    account = expect_account_of(config, analysis_of(config, counts), folder)
    privacy = folder.read_json("privacy.json")
    facts_check.expect_agreed(privacy, account, path)
    kind = privacy_costs.shown_answer(privacy)
    answer = kind.key
    graph, notes = page_graph.graph_of(folder, plan)
    if graph is not None and not notes:
        expect_plan_of(resolve(config, graph, counts), plan, path)
    own, mu = privacy["epsilon_per_agent"].get(answer), None
    if own is not None and plan.agents <= page_graph.MAX_DRAWN_AGENTS:
        mu = privacy_costs.link_losses(privacy, answer, plan.agents)
    epsilon = None if mu is None else privacy_costs.link_epsilons(mu, own, account.deltas)
    if mu is None and plan.agents > 1:
        notes.append(_no_links(kind, plan.agents, account.analysis.sites))
    if config.redrawable_noise is not None:
        notes.insert(0, config.redrawable_noise)
    spent, missing = privacy_costs.spent_along(plan, account, answer, max_seconds)
    return {
        "name": _name(path),
        "method": config.method.name,
        "data": _data(config, folder, counts),
        "model": config.model.name,
        "rounds": config.rounds,
        "releases": plan.releases,
        "seed": config.seed,
        "noise_seed": config.noise_seed,
        "redrawable_noise": config.redrawable_noise,
        "command": _command(config, path),
        "settings": config.model_dump(mode="json", exclude_none=True),
        "guarantee": {
            "name": privacy["guarantee"],
            "answer": answer,
            "label": kind.label,
            "pooled": kind.counts_colluders,
            "words": kind.against(account.colluders),
            "epsilon": config.privacy.epsilon if privacy["guarantee"] else None,
            "delta": account.delta,
            "colluders": account.colluders,
            "adjacency": account.analysis.adjacency,
            "unit": account.analysis.unit,
            "sites_per_person": account.analysis.sites,
        },
        "answers": [
            {"key": one.key, "label": one.label, "common": one.proved and not one.on_request}
            for one in BY_RANK
        ],
        "graph": page_graph.drawn(plan.agents, graph, mu, epsilon),
        "privacy": privacy,
        "power": privacy_costs.powers(account),
        "spending": spent,
        "notes": [*notes, *missing],
    }


def _expect_whole(folder: RunFolder) -> None:
    """Raise RunFolderError if config.toml is truncated, because defaults would replace what is missing."""
    stated = toml_text.parse_toml((folder.path / "config.toml").read_text(encoding="utf-8"))
    missing = [name for name in CONFIG_SECTIONS if name not in stated]
    if missing:
        raise RunFolderError(
            f"Expected a complete config.toml in {folder.path}, but it lacks {', '.join(missing)}. "
            "Restore the file, or repeat the run."
        )


def _name(path: Path) -> str:
    """Return the folder's name. The name of a run in a comparison or a sweep begins with that folder's name.

    >>> _name(Path("runs/compare-1/top")), _name(Path("runs/mine"))
    ('compare-1/top', 'mine')
    """
    named = path if path.name not in ("", "..") else path.resolve()
    parent = named.parent
    one_of_several = (
        parent.name.startswith("compare-")
        or (parent / "compare.png").exists()
        or (parent / "sweep.json").exists()
    )
    return in_utf8(f"{parent.name}/{named.name}" if one_of_several else named.name)


def _data(config: RunConfig, folder: RunFolder, counts: tuple[int, ...]) -> dict[str, Any]:
    """Return the name and size of the data, and a key. Runs with equal keys may share a picture of curves."""
    data = config.data
    tested_on: list[Any] = [data.name, data.sites, data.test, data.validation, config.train.loss]
    if config.started_from_python:  # the folder has no digest of the records
        info = folder.read_json("run.json")
        tested_on += [counts, info.get("inputs"), info.get("outputs")]
    key = hmac.new(_SALT, repr(tested_on).encode(), hashlib.sha256).hexdigest()[:16]
    title = "data given in Python" if config.started_from_python else data_title(data.name)
    return {
        "name": title,
        "key": key,
        "records": {"total": sum(counts), "min": min(counts), "max": max(counts)},
    }


def _command(config: RunConfig, path: Path) -> str:
    if config.started_from_python:
        return "started from Python: topdp.train(...)"
    return f"topdp run {_name(path)}/config.toml"


def _no_links(kind: AnswerKind, agents: int, sites: int) -> str:
    if sites > 1:
        return "ε is that of a person at several agents, so there is no ε of each edge."
    if agents > page_graph.MAX_DRAWN_AGENTS or kind.on_request:
        return "With this many observers the page lists every agent's own ε, not the ε of each edge."
    return f"The answer {kind.name} has no ε for single edges. The page shows every agent's ε instead."


def _progress(folder: RunFolder, state: str, info: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return the facts that change during the run."""
    lines = folder.metrics
    facts_check.expect_lines(lines, folder.path)
    stopped = info.get("stopped")
    notes = [] if state == "done" else [state_in_words(state)]
    if stopped is not None:
        notes.append(f"Stopped after round {stopped['round']}: {stopped['reason']}.")
    if not lines:
        over = state in ("done", "stopped", "diverged")
        notes.append(
            "There are no test records, so nothing was evaluated." if over else "Nothing is evaluated yet."
        )
    done = lines[-1]["round"] if lines else 0
    if state != "done" and state != "stopped":
        notes.append("ε is that of the whole plan, as calibrated before the first round.")
    return {
        "state": state,
        "stopped": stopped,
        "round": rounds if state == "done" else stopped["round"] if stopped else done,
        "metrics": _metrics(lines),
        "versions": {key: info.get(key) for key in ("topdp", "python", "torch", "device")},
        "seconds": info.get("seconds"),
        "notes": notes,
    }


def _metrics(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return metrics.jsonl as columns, or None if it is empty.

    Metrics with several values, one per class, are returned only for the last line.
    """
    if not lines:
        return None
    drawn = lines
    if len(lines) > MAX_DRAWN_EVALUATIONS:
        step = (len(lines) - 1) / (MAX_DRAWN_EVALUATIONS - 1)
        drawn = [lines[round(number * step)] for number in range(MAX_DRAWN_EVALUATIONS)]
    last = lines[-1]
    names = [*metric_names(last), *(["loss"] if "loss" in last and metric_names(last) != ["loss"] else [])]
    single = [name for name in names if not isinstance(last[name]["mean"], list)]
    return {
        "names": single,
        "shares": [name for name in names if is_share(name)],
        "rounds": [line["round"] for line in drawn],
        "values": {
            name: {part: [line.get(name, {}).get(part) for line in drawn] for part in ("mean", "min", "max")}
            for name in single
        },
        "agents": {name: last.get(f"{name}_per_agent") for name in single},
        "several": {name: last[name] for name in names if name not in single},
        "evaluations": len(lines),
    }
