"""`topdp agent init`, `start`: one agent on its own machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topdp.cli import agent_options
from topdp.views.terminal.console import Json, err, print_json, print_result, print_text, remark

if TYPE_CHECKING:
    from topdp.agents.runtime.agent_hooks import AgentHooks


def init(
    name: Annotated[str, typer.Option(help="The agent's name in the federation.")],
    folder: agent_options.IdentityFolder = Path("identity"),
    address: Annotated[
        str, typer.Option(help="host:port that others can dial; none if no port is open.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Create the key and the card of an agent.

    The key never leaves this machine. The card is printed; send it to the author of the manifest.
    """
    agent_options.expect_agents_installed()
    from topdp.agents.agreement import identity

    card = identity.create_identity(folder, name, address).card
    if as_json:
        print_json(
            {"name": card.name, "fingerprint": card.fingerprint, "card": str(folder / identity.CARD_FILE)}
        )
    else:
        print_text(card.to_toml())
        remark(f"The card is in {folder / identity.CARD_FILE}. Send it to the author of the manifest.")


def _expect_usable(manifest_file: Path, identity: Path) -> None:
    """Raise an error if the manifest or the identity cannot be used. This check does not load torch."""
    from topdp.agents.agreement.card_succession import load_identities
    from topdp.agents.agreement.manifest import read_manifest

    read_manifest(manifest_file).number(load_identities(identity)[0].card.name)


def start(
    manifest: agent_options.ManifestFile,
    data: Annotated[str, typer.Option(help="This agent's own records, as for `topdp run`.")],
    state: agent_options.State,
    identity: agent_options.IdentityFolder = Path("identity"),
    epsilon: Annotated[
        float | None, typer.Option(help="The agent's own budget; at most the manifest's.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="host:port to bind, by default the card's; 0.0.0.0:7400 binds all interfaces."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="[HOST:]PORT", help="Prometheus metrics on this port; without a host, on 127.0.0.1."
        ),
    ] = None,
    live_pairing: Annotated[
        bool,
        typer.Option(
            "--live-pairing",
            help="For asynchronous methods: agents find partners while they run. All must use it, or none.",
        ),
    ] = False,
    evaluate: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Every N rounds, evaluate on this site's own test records or, if it has none, on its "
            "training records. For the owner alone: publishing the scores is outside the guarantee.",
        ),
    ] = None,
    report: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Time between progress lines; 0: none.")
    ] = 30.0,
    json_log: Annotated[bool, typer.Option("--json-log", help="Write the log as JSON lines.")] = False,
    amended_by: Annotated[
        Path | None,
        typer.Option(metavar="MANIFEST", help="End with the round that this signed amendment names."),
    ] = None,
    after: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The state folder of the run that the amendment ends.")
    ] = None,
    site: agent_options.Site = None,
    as_json: Json = False,
) -> None:
    """Run the agent until the last round. To continue after a kill or a stop, repeat the command."""
    take_part(locals())


def take_part(arguments: dict[str, Any], make_hooks: Callable[[], AgentHooks] | None = None) -> None:
    """Run an agent with the `arguments` of `start`, print its result and exit.

    `make_hooks`: makes the hooks of development commands; None: there are none.
    """
    json_log, as_json = arguments.pop("json_log"), arguments.pop("as_json")
    agent_options.expect_agents_installed()
    _expect_usable(arguments["manifest"], arguments["identity"])
    if not json_log:
        from topdp.runs.progress_display import show_progress

        with show_progress(err, "agent", "loading torch"):
            from topdp.agents.node import agent_process
    from topdp.agents.node import agent_log, agent_process, shutdown

    log_filter = agent_log.log_to_stderr(json_log)
    options = agent_process.AgentOptions(**arguments)
    outcome = agent_process.run(options, log_filter, make_hooks() if make_hooks else None)
    result, spent = outcome.result, outcome.result["spent"]
    share = f"epsilon {agent_options.epsilon_in_words(spent['epsilon'])} of {result['budget']:.4g} spent"
    lines = [
        f"{result['agent']}: {result['releases']} releases, {share} ({spent['charged_by']}), {options.state}"
    ]
    if result["stopped_at"] is not None:
        lines.append(
            f"The budget ended before the plan: no records entered a round from {result['stopped_at']} on."
        )
    lines += [
        f"WARNING: {peer}: {words}. Its rows may have spoiled the model: compare the model with others, ask "
        f"{peer}, and read docs/robust.md."
        for peer, words in result["suspects"].items()
    ]
    if outcome.finished and not result["finished"]:
        lines.append(
            f"Most rounds were skipped ({result['skipped']}), because neighbours stated later ones. The "
            "estimate is no result of the plan: ask the neighbours which rounds they made."
        )
    if not outcome.finished:
        lines.append("The agent was stopped on request before the end. The same command continues the run.")
    print_result(as_json, {**result, "code": outcome.code}, *lines)
    shutdown.exit_without_cleanup(outcome.code)
    raise typer.Exit(outcome.code)
