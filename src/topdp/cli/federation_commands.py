"""`topdp federation create`, `canaries`, `demo`: commands for several agents."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from topdp.cli.agent_options import ManifestFile, epsilon_in_words, expect_agents_installed
from topdp.cli.shared_options import Changes, ConfigFile, Preset, expect_new_file
from topdp.plan.robust_rules import ROBUST_RULES
from topdp.runs import config
from topdp.runs.metric_labels import NO_TEST_RECORDS, metric_names, metric_text
from topdp.runs.progress_display import show_progress
from topdp.views.terminal.console import Json, err, print_json, print_result, remark, show


def create(
    cards: Annotated[list[Path], typer.Argument(metavar="CARD", help="The agents' cards, in order.")],
    records: Annotated[
        str | None,
        typer.Option(
            help="The number of records of each agent: 1200,800,950. With privacy.unit = person, of "
            "persons.  [required]"
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option("--config", help="A TOML file, as for `topdp run`.")] = None,
    preset: Preset = None,
    changes: Changes = None,
    links: Annotated[
        str | None, typer.Option(help="Edges as ada-bob,bob-cleo; by default the configuration's topology.")
    ] = None,
    dead_neighbour: Annotated[
        str, typer.Option(help="What agents do about a silent neighbour: wait or go-on.")
    ] = "wait",
    idle_timeout: Annotated[
        float, typer.Option(help="Seconds of silence after which a neighbour counts as silent.")
    ] = 30.0,
    departures: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The reserve: how many agents may drop out before others charge more. Needs the guarantee "
            "adaptive and --dead-neighbour wait, or go-on where agents share noise. By default 1; 0 if a "
            "reserve is impossible or slow to compute.",
        ),
    ] = None,
    largest_norm: Annotated[
        float, typer.Option(help="The largest norm of a row that agents accept; at most 1e15.")
    ] = 1e4,
    robust: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="How agents mix rows, so that a hostile or faulty member cannot spoil the model: "
            f"{', '.join(ROBUST_RULES)}; or none, if all are trusted with it.  [required]",
        ),
    ] = None,
    relay: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The relay for agents without an address.")
    ] = "",
    place: Annotated[Path, typer.Option("--out", help="The manifest to write.")] = Path("manifest.toml"),
    as_json: Json = False,
) -> None:
    """Create a manifest from cards and settings.

    The settings are graph, method, rounds and rules. The noise is calibrated.
    """
    expect_agents_installed()
    with show_progress(err, "federation", "reading cards") as progress:
        from topdp.agents.agreement import federation_manifest

        if records is None:
            missing = [str(card) for card in cards if not card.exists()]
            raise config.ConfigError(
                "--records: expected the number of records of each agent, such as 1200,800,950, got none."
                + (f" There is no file {', '.join(missing)}." if missing else "")
            )
        federation_manifest.expect_cards(cards)
        chosen = [] if robust is None else [f"robust.rule={'mean' if robust == 'none' else robust}"]
        settings = config.read(file, preset, [*(changes or []), *chosen, f"topology.agents={len(cards)}"])
        federation_manifest.expect_chosen_rule(settings)
        rules = {
            "dead_neighbour": dead_neighbour,
            "idle_timeout": idle_timeout,
            "departures": departures,
            "relay": relay,
            "largest_norm": largest_norm,
        }
        expect_new_file(place)
        progress("calibrating")
        manifest, account, remarks = federation_manifest.create_manifest(
            cards, records, settings, links, rules
        )
        manifest.write(place)
    for each in remarks:
        remark(each)
    print_result(
        as_json,
        {"manifest": str(place), "hash": manifest.hash, "privacy": account.summary()},
        f"{place}: {len(manifest.names)} agents, hash {manifest.hash}",
        "Give the same file to every agent, and compare the hash over another channel.",
    )


def canaries(
    manifest: ManifestFile,
    data: Annotated[str, typer.Option(help="Records of any agent, for the model's inputs.")],
    owner: Annotated[int | None, typer.Option(help="The audited agent: its number in the manifest.")] = None,
    observer: Annotated[str, typer.Option(help="The observer to test.")] = "worst",
    count: Annotated[int | None, typer.Option("--canaries", help="The number of canaries.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="The seed of the canaries.")] = 0,
    place: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("canaries.npz"),
    as_json: Json = False,
) -> None:
    """Create canaries for a rehearsal.

    Give the file to every agent (agent rehearse --canaries), then run `topdp audit`.
    """
    expect_agents_installed()
    expect_new_file(place)
    with show_progress(err, "federation", "loading torch") as progress:
        import torch

        from topdp import data as datasets
        from topdp.agents.agreement.manifest import read_manifest
        from topdp.agents.agreement.run_setup import RunSetup
        from topdp.agents.development import rehearsal_audit
        from topdp.audit import AuditRequest
        from topdp.data.featured_shards import input_shape
        from topdp.runs.named_model import named_task
        from topdp.runs.named_records import named_features, named_schema

        request = AuditRequest(owner=owner, observer=observer, canaries=count, seed=seed)
        agreed = read_manifest(manifest)
        request.expect_possible(len(agreed.names))
        progress("planning")
        setup = RunSetup.of(agreed)
        dataset = datasets.load(data, progress=progress, schema=named_schema(agreed.config))
        shape = input_shape(dataset, named_features(agreed.config))
        task = named_task(agreed.config)
        targets = task.targets(torch.from_numpy(dataset.train_targets), data)
        outputs = task.outputs(targets, dataset.classes)
        planted = rehearsal_audit.plant(setup, shape, outputs, request, progress)
        planted.save(place)
    name = setup.manifest.names[planted.canaries.owner]
    print_result(
        as_json,
        {"file": str(place), "owner": name, "canaries": len(planted.canaries)},
        f"{place}: {len(planted.canaries)} canaries in the records of {name}",
    )


def demo(
    file: ConfigFile = None,
    preset: Preset = None,
    changes: Changes = None,
    agents: Annotated[int, typer.Option(min=2, help="The number of processes.")] = 6,
    folder: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The run folder.")] = None,
    seeded: Annotated[
        bool, typer.Option("--seeded", help="Use the simulator's noise, for comparison; not private.")
    ] = False,
    budgets: Annotated[
        list[str] | None,
        typer.Option("--budget", metavar="AGENT=EPSILON", help="A smaller budget for one agent. Repeatable."),
    ] = None,
    rehearse: Annotated[
        bool, typer.Option("--rehearse", help="Plant canaries for `topdp audit`; not private.")
    ] = False,
    relay: Annotated[
        bool, typer.Option("--relay", help="No agent opens a port: all connect through a relay.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run all agents of a federation on this machine.

    Each agent is a process, and they connect over gRPC with mutual TLS. Writes a run folder.
    """
    expect_agents_installed()
    settings = config.read(file, preset, [*(changes or []), f"topology.agents={agents}"])
    out_folder = folder or Path("runs") / f"federation-{datetime.now():%Y%m%d-%H%M%S}"
    with show_progress(err, "federation", "loading torch") as progress:
        from topdp.agents.development import child_processes

        child_processes.warm_up()  # in parallel, on another core
        from topdp.agents.development import federation_demo as demos

        smaller = demos.parse_budgets(budgets or [], agents)
        progress("planning")
        result = demos.run(
            settings, out_folder, seeded, smaller, progress.announce, rehearse=rehearse, relay=relay
        )
    if as_json:
        print_json(result)
        return
    from topdp.views.terminal import tables

    table = tables.uncut("agent", "exit", "epsilon spent", "budget", "compute", "ledger", "network")
    for agent in result["agents"]:
        parts = [
            f"{agent['milliseconds_per_round'][part]:.1f} ms" for part in ("compute", "ledger", "network")
        ]
        spent = f"{epsilon_in_words(agent['spent']['epsilon'])} ({agent['spent']['charged_by']})"
        table.add_row(agent["agent"], str(agent["code"]), spent, f"{agent['budget']:.4g}", *parts)
    show(table)
    times = ", ".join(f"{part} {value:.1f} ms" for part, value in result["milliseconds_per_round"].items())
    show(f"Time per round, mean over agents: {times}")
    scores = result["metrics"] or {}
    words = [f"{name} {metric_text(name, scores[name]['mean'])}" for name in metric_names(scores)]
    show(f"{', '.join(words) or NO_TEST_RECORDS}; everything is in {out_folder}")
