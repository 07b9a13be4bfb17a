"""`topdp federation create`, `canaries`, `demo`: several agents."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from topdp.cli.agent_options import Changes, epsilon_in_words, need_parts
from topdp.runs import config
from topdp.runs.metric_labels import NOTHING, in_words, metric_names
from topdp.views.terminal.console import Json, err, print_json, remark, show
from topdp.views.terminal.progress_display import signs_of_life


def create(
    cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="The agents' cards, in order.")],
    records: Annotated[
        str | None, typer.Option("--records", help="How many records each holds: 1200,800,950. Needed.")
    ] = None,
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
    departures: Annotated[
        int | None,
        typer.Option(
            "--departures",
            min=0,
            help="How many agents may drop out without ending anybody's budget (adaptive, wait); else 1.",
        ),
    ] = None,
    largest_norm: Annotated[
        float, typer.Option("--largest-norm", help="Rows longer than this are refused; at most 1e15.")
    ] = 1e4,
    relay: Annotated[
        str, typer.Option("--relay", metavar="HOST:PORT", help="Where two meet who have no address.")
    ] = "",
    place: Annotated[Path, typer.Option("--out", help="The manifest.")] = Path("manifest.toml"),
    as_json: Json = False,
) -> None:
    """Cards, graph, method, rounds and rules become one manifest with a hash; noise is calibrated here."""
    need_parts()
    with signs_of_life(err, "federation") as progress:
        progress("reading cards")
        from topdp.agents.agreement import federation_manifest

        if records is None:
            missing = [str(card) for card in cards if not card.exists()]
            raise config.ConfigError(
                "--records: expected how many records each agent holds, such as 1200,800,950; got none."
                + (f" Nor is there a file {', '.join(missing)}." if missing else "")
            )
        federation_manifest.expect_cards(cards)
        wanted = config.read(file, preset, [*(changes or []), f"topology.agents={len(cards)}"])
        rules: dict[str, Any] = {
            "dead_neighbour": dead_neighbour,
            "idle_timeout": idle_timeout,
            "departures": departures,
        }
        rules |= {"relay": relay, "largest_norm": largest_norm}
        if place.exists():
            raise config.ConfigError(f"--out: {place} exists, and agents may run by it: name another file.")
        progress("calibrating")
        made, account, warnings = federation_manifest.create_manifest(cards, records, wanted, links, rules)
        made.write(place)
    for warning in warnings:
        remark(warning)
    if as_json:
        print_json({"manifest": str(place), "hash": made.hash, "privacy": account.summary()})
    else:
        show(f"{place}: {len(made.names)} agents, hash {made.hash}")
        show("Give the same file to every agent, and compare the hash by another way.")


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
    """Canaries for a rehearsal: every agent gets the file (agent rehearse --canaries), then `topdp audit`."""
    need_parts()
    if place.exists():
        raise config.ConfigError(f"--out: {place} exists, and agents may rehearse by it: name another file.")
    with signs_of_life(err, "federation") as progress:
        progress("loading torch")
        import torch

        from topdp import data as datasets
        from topdp.agents.agreement import manifest as manifests
        from topdp.agents.agreement.run_setup import RunSetup
        from topdp.agents.development import rehearsal_audit
        from topdp.audit import AuditRequest
        from topdp.data.featured_shards import input_shape
        from topdp.runs.named_model import named_task
        from topdp.runs.named_records import named_features, named_schema

        asked = AuditRequest(owner=owner, observer=observer, canaries=count, seed=seed)
        agreed = manifests.read_manifest(manifest)
        asked.expect_possible(len(agreed.names))
        progress("planning")
        setup = RunSetup.of(agreed)
        dataset = datasets.load(data, progress=progress, schema=named_schema(agreed.config))
        shape = input_shape(dataset, named_features(agreed.config))
        task = named_task(agreed.config)
        targets = task.targets(torch.from_numpy(dataset.train_targets), data)
        outputs = task.outputs(targets, dataset.classes)
        planted = rehearsal_audit.plant(setup, shape, outputs, asked, progress)
        planted.save(place)
    name = setup.manifest.names[planted.canaries.owner]
    if as_json:
        print_json({"file": str(place), "owner": name, "canaries": len(planted.canaries)})
    else:
        show(f"{place}: {len(planted.canaries)} canaries in the records of {name}")


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
    relay: Annotated[
        bool, typer.Option("--relay", help="No agent opens a port: all meet at a relay of this machine.")
    ] = False,
    as_json: Json = False,
) -> None:
    """All agents on this machine, each a process, over gRPC and mutual TLS; leaves a run folder."""
    need_parts()
    wanted = config.read(file, preset, [*(changes or []), f"topology.agents={agents}"])
    place = folder or Path("runs") / f"federation-{datetime.now():%Y%m%d-%H%M%S}"
    with signs_of_life(err, "federation") as progress:
        progress("loading torch")
        from topdp.agents.development import fork_server

        fork_server.warm_up()  # on another core than this one
        from topdp.agents.development import federation_demo as demos

        smaller = demos.parse_budgets(budgets or [], agents)
        progress("planning")
        found = demos.run(wanted, place, seeded, smaller, progress.say, rehearse=rehearse, relay=relay)
    if as_json:
        print_json(found)
        return
    from topdp.views.terminal import tables

    table = tables.uncut("agent", "exit", "epsilon spent", "budget", "compute", "ledger", "network")
    for each in found["agents"]:
        parts = [
            f"{each['milliseconds_per_round'][part]:.1f} ms" for part in ("compute", "ledger", "network")
        ]
        spent = f"{epsilon_in_words(each['spent']['epsilon'])} ({each['spent']['charged_by']})"
        table.add_row(each["agent"], str(each["code"]), spent, f"{each['budget']:.4g}", *parts)
    show(table)
    times = ", ".join(f"{part} {value:.1f} ms" for part, value in found["milliseconds_per_round"].items())
    show(f"Time per round, mean over agents: {times}")
    scores = found["metrics"] or {}
    said = [f"{name} {in_words(name, scores[name]['mean'])}" for name in metric_names(scores)]
    show(f"{', '.join(said) or NOTHING}; everything is in {place}")
