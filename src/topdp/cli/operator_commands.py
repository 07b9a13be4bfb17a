"""`topdp agent status`, `pause`, `resume`, `stop`, `model`, `quarantine`: an agent from another shell."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from topdp.cli.agent_options import State
from topdp.errors import InputError, Interrupted
from topdp.views.terminal.console import Json, err, out, print_json, show

HEARD = 10.0  # seconds within which a running agent takes up an order


def status(
    state: State,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Go on: a terminal is refreshed, else a line per change; until it ends."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Where an agent stands, from its books and its process; also while it runs."""
    from topdp.agents.node.agent_status import describe_status, read_status

    if watch:
        _watch(state, as_json)
        return
    facts = read_status(state)
    if as_json:
        print_json(facts)
        return
    from topdp.views.terminal import tables

    show(tables.facts(str(facts["agent"]), describe_status(facts)))


def _watch(state: Path, as_json: bool, pause: float = 1.0) -> None:
    from topdp.agents.node.agent_status import (
        describe_status,
        finished,
        read_status,
        stable_facts,
        status_line,
    )

    told: dict[str, Any] | None = None
    on_terminal = sys.stdout.isatty() and not as_json
    try:
        while True:
            facts = read_status(state)
            new = stable_facts(facts) != told
            told = stable_facts(facts)
            if on_terminal:
                from topdp.views.terminal import tables

                out.clear()
                show(
                    tables.facts(str(facts["agent"]), describe_status(facts)),
                    "Ctrl-C ends watching, not the agent.",
                )
            elif new and as_json:
                print_json(facts)
            elif new:
                show(status_line(state, facts))
            if finished(facts):
                return
            time.sleep(pause)
    except KeyboardInterrupt:
        return


def pause(state: State, as_json: Json = False) -> None:
    """No new release until `resume`, over restarts too; goes on answering and receiving. The others wait."""
    from topdp.agents.node.operator_orders import PAUSE_FILE

    new = _orders(state).give(PAUSE_FILE)
    facts = _until(state, lambda facts: facts["doing"] in ("paused", "ends"))
    words = "paused" if new else "was paused already"
    if facts["process"] == "not running":
        words += "; it is not running, and will be so when it is started"
    elif facts["doing"] == "ends":
        words += ", but all its rounds are done: there is nothing left to hold back"
    elif facts["doing"] != "paused":
        words += f" after the release that it is at ({facts['process']})"
    _tell(facts, words, as_json, {"paused": True, "new": new})


def resume(state: State, as_json: Json = False) -> None:
    """Takes `pause` back."""
    from topdp.agents.node.operator_orders import PAUSE_FILE

    was = _orders(state).withdraw(PAUSE_FILE)
    facts = _until(state, lambda facts: facts["doing"] != "paused")
    words = "goes on" if was else "was not paused"
    if facts["process"] == "not running":
        words += "; it is not running: start it"
    _tell(facts, words, as_json, {"paused": False, "new": was})


def stop(
    state: State,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for its end.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Ends the process in order, paused or not; `topdp agent start` continues where it was."""
    from topdp.agents.node.agent_status import read_status
    from topdp.agents.node.operator_orders import STOP_FILE

    orders = _orders(state)
    facts = read_status(state)
    if facts["process"] == "not running":
        _tell(facts, "is not running", as_json, {"was_running": False})
        return
    number = facts["id"]
    orders.give(STOP_FILE)
    facts = _until(state, lambda facts: facts["process"] == "not running", timeout)
    if facts["process"] != "not running":
        raise Interrupted(
            f"Process {number} has not ended within {timeout:g} s ({facts['process']}). To end it at once: "
            f"kill -9 {number}. What is on its books stays, and is charged once."
        )
    _tell(facts, "has ended", as_json, {"was_running": True})


def export_model(
    state: State,
    file: Annotated[Path, typer.Option("--out", metavar="FILE", help="Ends in .safetensors, .pt or .onnx.")],
    format: Annotated[
        str | None, typer.Option("--format", help="safetensors, state-dict or onnx: by default the ending's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The agent's model after its last release, also while it runs. Reads no data and no manifest."""
    from topdp.views.terminal.progress_display import signs_of_life

    with signs_of_life(err, "export") as progress:
        progress("loading torch")
        from topdp.agents.node.agent_model_file import export_model

        round = export_model(state, file, format)
    if as_json:
        print_json({"file": str(file), "round": round})
    else:
        show(f"The model after round {round} is {file}")


def list_quarantined(state: State, as_json: Json = False) -> None:
    """Whom this agent no longer believes, and why; and what was lifted, by whom and for what reason."""
    from topdp.agents.node.quarantine import read_quarantine

    found = read_quarantine(state)
    if as_json:
        print_json(found)
        return
    for peer, why in found["quarantined"].items():
        show(f"{peer}: {why['code']}: {why['words']}")
    for one in found["lifted"]:
        show(f"{one['peer']}: lifted at {one['time']}: {one['reason']} (it was: {one['words']})")
    if not found["quarantined"]:
        show("Nobody is quarantined.")


def lift_quarantine(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="Who is to be believed again.")],
    state: State,
    reason: Annotated[str, typer.Option("--reason", help="What a person has found; kept on the books.")],
    as_json: Json = False,
) -> None:
    """Believes a neighbour again, from the next start on. What it cost stays: a departure stays one."""
    from topdp.agents.node.quarantine import lift_quarantine

    found = lift_quarantine(state, peer, reason)
    if as_json:
        print_json(found)
        return
    show(f"{peer} is believed again once this agent is started.")
    for remark in found["remarks"]:
        show(remark)


def _orders(state: Path) -> Any:
    from topdp.agents.ledger.ledger_database import LEDGER_FILE
    from topdp.agents.node.operator_orders import OperatorOrders

    if not (state / LEDGER_FILE).exists():
        raise InputError(f"Expected an agent's state folder with {LEDGER_FILE}, {state} is none.")
    return OperatorOrders(state)


def _until(state: Path, done: Callable[[dict[str, Any]], bool], timeout: float = HEARD) -> dict[str, Any]:
    """Looks until it is so, nobody is running, or time is up; what was seen last."""
    from topdp.agents.node.agent_status import read_status

    end = time.monotonic() + timeout
    while True:
        facts = read_status(state)
        if done(facts) or facts["process"] == "not running" or time.monotonic() >= end:
            return facts
        time.sleep(0.1)


def _tell(facts: dict[str, Any], words: str, as_json: bool, more: dict[str, Any]) -> None:
    if as_json:
        print_json({"agent": facts["agent"], "process": facts["process"], "round": facts["round"], **more})
    else:
        show(f"{facts['agent']}: {words}.")
