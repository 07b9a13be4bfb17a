"""`topdp agent ...` and `topdp federation ...`: arguments in, tables and exit codes out.

Nothing heavy is imported before a command is called, so that `topdp --help` needs neither torch nor gRPC.
"""

from __future__ import annotations

import importlib.util
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from topdp.errors import InputError
from topdp.report.metrics import NOTHING, in_words, metric_names
from topdp.report.progress import signs_of_life
from topdp.report.terminal import Json, err, print_json, print_text, remark, show
from topdp.settings import config

agent_app = typer.Typer(
    help="One agent on its own machine: init, start, status, ledger.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
PARTS = ("cryptography", "google.protobuf", "grpc", "prometheus_client")

ledger_app = typer.Typer(help="What an agent has spent.", no_args_is_help=True, rich_markup_mode=None)
federation_app = typer.Typer(
    help="Several agents: the manifest, and a demonstration on this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
agent_app.add_typer(ledger_app, name="ledger")

State = Annotated[Path, typer.Option("--state", metavar="DIR", help="The agent's state folder.")]
IdentityFolder = Annotated[Path, typer.Option("--identity", metavar="DIR", help="Where key and card are.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the configuration.")
]


@agent_app.command("init")
def init(
    name: Annotated[str, typer.Option("--name", help="How the others call this agent.")],
    folder: IdentityFolder = Path("identity"),
    address: Annotated[
        str, typer.Option("--address", help="host:port that others can dial; none if no port can be opened.")
    ] = "",
    as_json: Json = False,
) -> None:
    """Makes a key that never leaves this machine, and prints the card for the others."""
    _need_parts()
    from topdp.agents.terms import identity

    card = identity.init(folder, name, address).card
    if as_json:
        print_json({"name": card.name, "fingerprint": card.fingerprint, "card": str(folder / identity.CARD)})
    else:
        print_text(card.to_toml())
        remark(f"This card is in {folder / identity.CARD}: send it to whoever makes the manifest.")


@agent_app.command("start")
def start(
    manifest: Annotated[Path, typer.Option("--manifest", help="What all agents have agreed to.")],
    data: Annotated[str, typer.Option("--data", help="This agent's own records, as for `topdp run`.")],
    state: State,
    folder: IdentityFolder = Path("identity"),
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="A budget of one's own, below the manifest's.")
    ] = None,
    seeded: Annotated[
        bool, typer.Option("--seeded", help="Noise from the manifest's seed: for tests, not private.")
    ] = False,
    listen: Annotated[
        str | None, typer.Option("--listen", help="host:port to bind, where it is not the card's.")
    ] = None,
    metrics: Annotated[
        int | None,
        typer.Option(
            "--metrics", metavar="PORT", min=1, max=65535, help="For Prometheus, on 127.0.0.1:PORT."
        ),
    ] = None,
    live_pairing: Annotated[
        bool, typer.Option("--live-pairing", help="Async: find partners on the way; all agents or none.")
    ] = False,
    json_log: Annotated[bool, typer.Option("--json-log", help="The log as JSON lines.")] = False,
    canaries: Annotated[
        Path | None,
        typer.Option(
            "--canaries", metavar="FILE", help="A rehearsal for an audit: records what it sees; not private."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Takes part until the last round. Killed or stopped, the same command continues where it was."""
    _need_parts()
    with nullcontext() if json_log else signs_of_life(err, "agent") as signs:
        if signs is not None:
            signs.stage("loading torch")
        from topdp.agents.site import log, process

    log.to_stderr(json_log)
    outcome = process.run(
        process.Options(
            manifest, folder, data, state, epsilon, seeded, listen, metrics, live_pairing, canaries
        )
    )
    if as_json:
        print_json({**outcome.result, "code": outcome.code})
    else:
        result, spent = outcome.result, outcome.result["spent"]
        show(
            f"{result['agent']}: {result['releases']} releases, epsilon {_number(spent['epsilon'])} of "
            f"{result['budget']:.4g} spent ({spent['charged_by']}), {state}",
        )
        if result["stopped_at"] is not None:
            show(
                f"Its budget ended before the plan: its data entered no round from {result['stopped_at']} on."
            )
        if not outcome.finished:
            show("Asked to stop before the end: the same command continues.")
    raise typer.Exit(outcome.code)


@agent_app.command("status")
def status(state: State, as_json: Json = False) -> None:
    """Where an agent stands, from its books; also while it runs."""
    from topdp.agents.books.ledger import Ledger

    ledger = Ledger(state, writable=False)
    peers = ledger.known_peers()
    facts: dict[str, Any] = {
        "agent": ledger.meta.get("agent"),
        "federation": ledger.meta.get("federation"),
        "round": ledger.round,
        "epsilon": ledger.spent,
        "charged_by": ledger.charged_by,
        "worst_case": ledger.last.worst_case if ledger.last else 0.0,
        "stopped": ledger.stopped_at,
        "departed": ledger.departed,
        "gone": ledger.counted_out(),
        "seen": {peer: ledger.seen(peer) for peer in peers},
        "quarantined": {
            peer: {"code": why.code.name, "words": why.words}
            for peer in peers
            if (why := ledger.quarantined(peer)) is not None
        },
    }
    if as_json:
        print_json(facts)
        return
    from topdp.report import tables

    show(tables.facts(str(facts["agent"]), facts))


@ledger_app.command("show")
def ledger_show(state: State, as_json: Json = False) -> None:
    """Every charge: when, what, how much."""
    from dataclasses import asdict

    from topdp.agents.books.ledger import Ledger

    entries = list(Ledger(state, writable=False).entries())
    if as_json:
        print_json({"charges": [asdict(entry) for entry in entries]})
        return
    from topdp.report import tables

    table = tables.uncut("round", "kind", "charge", "spent", "worst case", "sent to")
    for entry in entries:
        table.add_row(
            str(entry.round),
            entry.kind,
            f"{entry.charge:.3g}",
            f"{entry.total:.4g}",
            _number(entry.worst_case),
            ", ".join(entry.digests) or "-",
        )
    show(table)


@ledger_app.command("verify")
def ledger_verify(state: State, as_json: Json = False) -> None:
    """Reads everything and says whether the books are whole; exit code 4 if not."""
    from topdp.agents.books.audit import verify
    from topdp.agents.books.ledger import Ledger

    ledger = Ledger(state, writable=False)
    charges = verify(ledger)
    if as_json:
        print_json({"charges": charges, "epsilon": ledger.total, "whole": True})
    else:
        show(f"{charges} charges, epsilon {ledger.total:.6g}: the books are whole.")


@federation_app.command("create")
def create(
    cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="The agents' cards, in order.")],
    records: Annotated[str, typer.Option("--records", help="How many records each holds: 1200,800,950.")],
    file: Annotated[Path | None, typer.Option("--config", help="A TOML file, as for `topdp run`.")] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="A shipped configuration.")] = None,
    changes: Changes = None,
    links: Annotated[
        str | None, typer.Option("--links", help="ada-bob,bob-cleo; else the configuration's topology.")
    ] = None,
    dead_neighbour: Annotated[
        str, typer.Option("--dead-neighbour", help="wait, or go-on without it after the idle timeout.")
    ] = "wait",
    idle_timeout: Annotated[float, typer.Option("--idle-timeout", help="Seconds.")] = 30.0,
    place: Annotated[Path, typer.Option("--out", help="The manifest.")] = Path("manifest.toml"),
    as_json: Json = False,
) -> None:
    """Cards, graph, method, rounds and rules become one manifest with a hash; noise is calibrated here."""
    _need_parts()
    with signs_of_life(err, "federation") as signs:
        signs.stage("reading cards")
        from topdp.agents.terms import federation

        federation.expect_cards(cards)
        wanted = config.read(file, preset, [*(changes or []), f"topology.agents={len(cards)}"])
        rules = {"dead_neighbour": dead_neighbour, "idle_timeout": idle_timeout}
        if place.exists():
            raise config.ConfigError(f"--out: {place} exists, and agents may run by it: name another file.")
        signs.stage("calibrating")
        made, account, warnings = federation.create(cards, records, wanted, links, rules)
        made.write(place)
    for warning in warnings:
        remark(warning)
    if as_json:
        print_json({"manifest": str(place), "hash": made.hash, "privacy": account.summary()})
    else:
        show(f"{place}: {len(made.names)} agents, hash {made.hash}")
        show("Give the same file to every agent, and compare the hash by another way.")


@federation_app.command("canaries")
def canaries(
    manifest: Annotated[Path, typer.Option("--manifest", help="What all agents have agreed to.")],
    data: Annotated[str, typer.Option("--data", help="Records of any agent: the model is made for them.")],
    owner: Annotated[
        int | None, typer.Option("--owner", help="Who is audited: number in the manifest.")
    ] = None,
    observer: Annotated[str, typer.Option("--observer", help="At whom they are aimed.")] = "worst",
    count: Annotated[int | None, typer.Option("--canaries", help="How many.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of their coins and places.")] = 0,
    place: Annotated[Path, typer.Option("--out", help="The file.")] = Path("canaries.npz"),
    as_json: Json = False,
) -> None:
    """Canaries for a rehearsal: give the file to every agent (agent start --canaries), then `topdp audit`."""
    _need_parts()
    if place.exists():
        raise config.ConfigError(f"--out: {place} exists, and agents may rehearse by it: name another file.")
    with signs_of_life(err, "federation") as signs:
        signs.stage("loading torch")
        import torch

        from topdp import data as datasets
        from topdp.agents.site import rehearsals
        from topdp.agents.terms import manifest as manifests
        from topdp.agents.terms.setup import Setup
        from topdp.audit import Question
        from topdp.data.featured import shape_seen
        from topdp.settings import build

        asked = Question(owner, observer, canaries=count, seed=seed)
        agreed = manifests.read(manifest)
        asked.expect_possible(len(agreed.names))
        signs.stage("planning")
        setup = Setup.of(agreed)
        dataset = datasets.load(data, progress=signs.fetching, schema=build.schema(agreed.config))
        shape = shape_seen(dataset, build.features(agreed.config))
        task = build.task(agreed.config)
        targets = task.targets(torch.from_numpy(dataset.train_targets), data)
        outputs = task.outputs(targets, dataset.classes)
        planted = rehearsals.plant(setup, shape, outputs, asked, signs.watch)
        planted.save(place)
    name = setup.manifest.names[planted.canaries.owner]
    if as_json:
        print_json({"file": str(place), "owner": name, "canaries": len(planted.canaries)})
    else:
        show(f"{place}: {len(planted.canaries)} canaries in the records of {name}")


@federation_app.command("demo")
def demo(
    file: Annotated[Path | None, typer.Argument(metavar="[CONFIG]", show_default=False)] = None,
    preset: Annotated[str | None, typer.Option("--preset", help="A shipped configuration.")] = None,
    changes: Changes = None,
    agents: Annotated[int, typer.Option("--agents", min=2, help="How many processes.")] = 6,
    folder: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The run folder.")] = None,
    seeded: Annotated[
        bool, typer.Option("--seeded", help="The simulator's noise, to compare with it; not private.")
    ] = False,
    budgets: Annotated[
        list[str] | None, typer.Option("--budget", metavar="AGENT=EPSILON", help="A smaller budget for one.")
    ] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="With canaries, recorded, for `topdp audit` of its folder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """All agents on this machine, each a process, over gRPC and mutual TLS; leaves a run folder."""
    _need_parts()
    wanted = config.read(file, preset, [*(changes or []), f"topology.agents={agents}"])
    place = folder or Path("runs") / f"federation-{datetime.now():%Y%m%d-%H%M%S}"
    with signs_of_life(err, "federation") as signs:
        signs.stage("loading torch")
        from topdp.agents.site import demo as demos

        smaller = demos.parse_budgets(budgets or [], agents)
        signs.stage("planning")
        found = demos.run(wanted, place, seeded, smaller, signs.say, rehearse=rehearse)
    if as_json:
        print_json(found)
        return
    from topdp.report import tables

    table = tables.uncut("agent", "exit", "epsilon spent", "budget", "compute", "ledger", "network")
    for each in found["agents"]:
        parts = [
            f"{each['milliseconds_per_round'][part]:.1f} ms" for part in ("compute", "ledger", "network")
        ]
        spent = f"{_number(each['spent']['epsilon'])} ({each['spent']['charged_by']})"
        table.add_row(each["agent"], str(each["code"]), spent, f"{each['budget']:.4g}", *parts)
    show(table)
    times = ", ".join(f"{part} {value:.1f} ms" for part, value in found["milliseconds_per_round"].items())
    show(f"Time per round, mean over agents: {times}")
    scores = found["metrics"] or {}
    said = [f"{name} {in_words(name, scores[name]['mean'])}" for name in metric_names(scores)]
    show(f"{', '.join(said) or NOTHING}; everything is in {place}")


def _number(epsilon: float | None) -> str:
    return "infinite" if epsilon is None else f"{epsilon:.4g}"


def _need_parts() -> None:
    """What agents need beyond the rest of topdp, and an installation may lack."""
    try:
        missing = [name for name in PARTS if importlib.util.find_spec(name) is None]
    except ModuleNotFoundError as error:  # the package around one of them
        missing = [str(error.name)]
    if missing:
        raise InputError("Real agents need more parts: pip install -c constraints.txt '.[agents]'")
