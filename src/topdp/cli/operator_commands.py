"""`topdp agent status`, `pause`, `resume`, `stop`, `model`, `quarantine`: operate a running agent."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topdp.cli.agent_options import State, expect_unix
from topdp.errors import InputError, Interrupted
from topdp.views.terminal.console import Json, err, out, print_result, show

if TYPE_CHECKING:
    from topdp.agents.node.operator_orders import OperatorOrders

ORDER_TIMEOUT_SECONDS = 10.0  # how long commands wait for a running agent to obey an order
WATCH_INTERVAL_SECONDS = 1.0


def status(
    state: State,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", help="Refresh until the agent ends: in place on a terminal, else one line per change."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the status of an agent, also while it runs.

    The status comes from its ledger and its process. The exit code is 0 while it runs, 6 if it hangs or was
    killed, and otherwise the one with which it ended.
    """
    from topdp.agents.node.agent_status import describe_status, exit_code, read_status
    from topdp.views.terminal import tables

    if watch:
        _watch(state, as_json)
        return
    facts = read_status(state)
    print_result(as_json, facts, tables.facts(str(facts["agent"]), describe_status(facts)))
    raise typer.Exit(exit_code(facts))


def _watch(state: Path, as_json: bool) -> None:
    from topdp.agents.node import agent_status
    from topdp.views.terminal import tables

    shown: dict[str, Any] | None = None
    on_terminal = sys.stdout.isatty() and not as_json
    try:
        while True:
            facts = agent_status.read_status(state)
            earlier, shown = shown, {**facts, "written": None, "heard": None}  # these change all the time
            if on_terminal:
                out.clear()
                table = tables.facts(str(facts["agent"]), agent_status.describe_status(facts))
                show(table, "Ctrl-C ends this display, not the agent.")
            elif shown != earlier:
                print_result(as_json, facts, agent_status.status_line(state, facts))
            if agent_status.finished(facts):
                raise typer.Exit(agent_status.exit_code(facts))
            time.sleep(WATCH_INTERVAL_SECONDS)
    except KeyboardInterrupt:
        return


def pause(state: State, as_json: Json = False) -> None:
    """Pause an agent until `resume`, even after restarts.

    It makes no new release, and its neighbours wait.
    """
    from topdp.agents.node.operator_orders import PAUSE_FILE

    is_new = _orders(state).give(PAUSE_FILE)
    facts = _wait_until(state, lambda facts: facts["doing"] in ("paused", "ends"))
    words = "paused" if is_new else "was paused already"
    if facts["process"] == "not running":
        words += "; it is not running, and will be paused when started"
    elif facts["doing"] == "ends":
        words += ", but all its rounds are already done"
    elif facts["doing"] != "paused":
        words += f" after its current release ({facts['process']})"
    _print_order(facts, words, as_json, paused=True, new=is_new)


def resume(state: State, as_json: Json = False) -> None:
    """Resume a paused agent."""
    from topdp.agents.node.operator_orders import PAUSE_FILE

    was_paused = _orders(state).withdraw(PAUSE_FILE)
    facts = _wait_until(state, lambda facts: facts["doing"] != "paused")
    words = "continues" if was_paused else "was not paused"
    if facts["process"] == "not running":
        words += "; it is not running, so start it"
    _print_order(facts, words, as_json, paused=False, new=was_paused)


def stop(
    state: State,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the process to end.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Stop the agent's process cleanly, paused or not.

    `topdp agent start` continues the run.
    """
    from topdp.agents.node.agent_status import read_status
    from topdp.agents.node.operator_orders import STOP_FILE

    orders = _orders(state)
    facts = read_status(state)
    if facts["process"] == "not running":
        _print_order(facts, "is not running", as_json, was_running=False)
        return
    process = facts["id"]
    orders.give(STOP_FILE)
    facts = _wait_until(state, lambda facts: facts["process"] == "not running", timeout)
    if facts["process"] != "not running":
        raise Interrupted(
            f"Expected process {process} to end within {timeout:g} s, but it is {facts['process']}. Wait "
            f"longer with --timeout, or end it with `kill -9 {process}`; the ledger keeps all charges."
        )
    _print_order(facts, "has ended", as_json, was_running=True)


def export_model(
    state: State,
    file: Annotated[Path, typer.Option("--out", metavar="FILE", help="Ends in .safetensors, .pt or .onnx.")],
    format: Annotated[
        str | None, typer.Option(help="safetensors, state-dict or onnx; by default as the name ends.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Export the agent's model after its last release.

    Works also while the agent runs. Reads no data and no manifest.
    """
    from topdp.runs.progress_display import show_progress

    with show_progress(err, "export", "loading torch"):
        from topdp.agents.node.agent_model_file import export_model as export

        round = export(state, file, format)
    print_result(as_json, {"file": str(file), "round": round}, f"The model after round {round} is in {file}")


def list_quarantined(state: State, as_json: Json = False) -> None:
    """List the neighbours in quarantine, with reasons.

    This agent accepts no more rows from them. Lifted quarantines are listed too.
    """
    from topdp.agents.node.quarantine import read_quarantine

    facts = read_quarantine(state)
    lines = [f"{peer}: {why['code']}: {why['words']}" for peer, why in facts["quarantined"].items()]
    lines += [
        f"{lifted['peer']}: lifted at {lifted['time']}: {lifted['reason']} (it was: {lifted['words']})"
        for lifted in facts["lifted"]
    ]
    none = [] if facts["quarantined"] else ["No neighbour is quarantined."]
    print_result(as_json, facts, *lines, *none)


def lift_quarantine(
    peer: Annotated[str, typer.Argument(metavar="PEER", help="The neighbour to accept again.")],
    state: State,
    reason: Annotated[str, typer.Option(help="Why the neighbour is trusted again; kept in the ledger.")],
    as_json: Json = False,
) -> None:
    """Accept a neighbour's rows again, from the next start.

    The privacy costs of the quarantine remain.
    """
    from topdp.agents.node.quarantine import lift_quarantine as lift

    facts = lift(state, peer, reason)
    print_result(
        as_json, facts, f"{peer} is accepted again after the next start of this agent.", *facts["remarks"]
    )


def _orders(state: Path) -> OperatorOrders:
    """Return the orders of the agent with this state folder. Raise InputError if the folder has no ledger."""
    from topdp.agents.ledger.ledger_database import LEDGER_FILE

    expect_unix()
    from topdp.agents.node.operator_orders import OperatorOrders

    if not (state / LEDGER_FILE).exists():
        raise InputError(
            f"Expected an agent's state folder with {LEDGER_FILE}, got {state}. Name the folder of --state."
        )
    return OperatorOrders(state)


def _wait_until(
    state: Path, done: Callable[[dict[str, Any]], bool], timeout: float = ORDER_TIMEOUT_SECONDS
) -> dict[str, Any]:
    """Read the status repeatedly until `done(status)` is true, the process ends, or `timeout` seconds pass.

    Return the last status.
    """
    from topdp.agents.node.agent_status import read_status

    deadline = time.monotonic() + timeout
    while True:
        facts = read_status(state)
        if done(facts) or facts["process"] == "not running" or time.monotonic() >= deadline:
            return facts
        time.sleep(0.1)


def _print_order(facts: dict[str, Any], words: str, as_json: bool, **effects: object) -> None:
    agent = facts["agent"]
    result = {"agent": agent, "process": facts["process"], "round": facts["round"], **effects}
    print_result(as_json, result, f"{agent}: {words}.")
