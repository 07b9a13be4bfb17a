"""`topdp agent init`, `start`: one agent on its own machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topdp.cli.agent_options import IdentityFolder, Site, State, epsilon_in_words, need_parts
from topdp.views.terminal.console import Json, err, print_json, print_text, remark, show

if TYPE_CHECKING:
    from topdp.agents.runtime.agent_hooks import AgentHooks


def init(
    name: Annotated[str, typer.Option("--name", help="How the others call this agent.")],
    folder: IdentityFolder = Path("identity"),
    address: Annotated[
        str, typer.Option("--address", help="host:port that others can dial; none if no port can be opened.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Makes a key that never leaves this machine, and prints the card for the others."""
    need_parts()
    from topdp.agents.agreement import identity

    card = identity.create_identity(folder, name, address).card
    if as_json:
        print_json(
            {"name": card.name, "fingerprint": card.fingerprint, "card": str(folder / identity.CARD_FILE)}
        )
    else:
        print_text(card.to_toml())
        remark(f"This card is in {folder / identity.CARD_FILE}: send it to whoever makes the manifest.")


def _expect_terms(manifest: Path, folder: Path) -> None:
    """Refuses a manifest or an identity that cannot be used: at once, and not after torch was loaded."""
    from topdp.agents.agreement import amendments, card_succession
    from topdp.agents.agreement import manifest as manifests

    terms = manifests.read_manifest(manifest)
    terms.number(card_succession.load_identities(folder)[0].card.name)
    amendments.expect_all_signed(terms)


def start(
    manifest: Annotated[Path, typer.Option("--manifest", help="What all agents have agreed to.")],
    data: Annotated[str, typer.Option("--data", help="This agent's own records, as for `topdp run`.")],
    state: State,
    identity: IdentityFolder = Path("identity"),
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="A budget of one's own, below the manifest's.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", help="host:port to bind, where the card's is a router's; 0.0.0.0:7400: all."
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics", metavar="PORT", min=1, max=65535, help="For Prometheus, on 127.0.0.1:PORT."
        ),
    ] = None,
    live_pairing: Annotated[
        bool, typer.Option("--live-pairing", help="Async: find partners on the way; all agents or none.")
    ] = False,
    evaluate: Annotated[
        int | None,
        typer.Option(
            "--evaluate",
            metavar="N",
            min=1,
            help="Every N rounds, metrics on this site's own test records (or, without any, those it learns "
            "from): for the owner's eyes; publishing them is outside the guarantee.",
        ),
    ] = None,
    report: Annotated[
        float,
        typer.Option("--report", metavar="SECONDS", min=0, help="Between two lines of progress; 0: none."),
    ] = 30.0,
    json_log: Annotated[bool, typer.Option("--json-log", help="The log as JSON lines.")] = False,
    amended_by: Annotated[
        Path | None,
        typer.Option(
            "--amended-by", metavar="MANIFEST", help="End where this amendment, signed by all, says."
        ),
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            "--after", metavar="DIR", help="Under an amendment: the state folder of the run before."
        ),
    ] = None,
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", help="Go on with books of an older version: they are surely the newest."),
    ] = False,
    site: Site = None,
    as_json: Json = False,
) -> None:
    """Takes part until the last round. Killed or stopped, the same command continues where it was."""
    take_part(locals())


def take_part(arguments: dict[str, Any], make_hooks: Callable[[], AgentHooks] | None = None) -> None:
    """Run the agent that the `arguments` of `start` describe; `make_hooks` is for development commands."""
    json_log, as_json = arguments.pop("json_log"), arguments.pop("as_json")
    need_parts()
    _expect_terms(arguments["manifest"], arguments["identity"])
    if not json_log:
        from topdp.views.terminal.progress_display import signs_of_life

        with signs_of_life(err, "agent") as progress:
            progress("loading torch")
            from topdp.agents.node import agent_process
    from topdp.agents.node import agent_log, agent_process, shutdown

    log_filter = agent_log.log_to_stderr(json_log)
    options = agent_process.AgentOptions(**arguments)
    outcome = agent_process.run(options, log_filter, make_hooks() if make_hooks else None)
    if as_json:
        print_json({**outcome.result, "code": outcome.code})
    else:
        result, spent = outcome.result, outcome.result["spent"]
        share = f"epsilon {epsilon_in_words(spent['epsilon'])} of {result['budget']:.4g} spent"
        show(
            f"{result['agent']}: {result['releases']} releases, {share} ({spent['charged_by']}), "
            f"{options.state}"
        )
        if result["stopped_at"] is not None:
            show(
                f"Its budget ended before the plan: its data entered no round from {result['stopped_at']} on."
            )
        if not outcome.finished:
            show("Asked to stop before the end: the same command continues.")
    shutdown.exit_without_cleanup(outcome.code)
    raise typer.Exit(outcome.code)
