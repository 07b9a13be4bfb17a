"""What says how private something is, or attacks it: account, recommend, audit, calibrate."""

from __future__ import annotations

from typing import Annotated

import typer

from topdp.cli.shared_options import (
    BEGINS_ANEW,
    Changes,
    ConfigFile,
    Device,
    Out,
    Preset,
    Target,
    going_on,
    new_place,
)
from topdp.runs import config
from topdp.runs.config import ConfigError
from topdp.views.terminal.console import Json, err, print_json, show
from topdp.views.terminal.progress_display import signs_of_life


def account(
    target: Target = None,
    preset: Preset = None,
    changes: Changes = None,
    coalition: Annotated[
        int, typer.Option("--coalition", min=1, help="Also account coalitions of this many agents.")
    ] = 1,
    answers: Annotated[
        str,
        typer.Option(
            "--answers",
            help="Also these answers, with commas: view, adaptive, outsider. The guarantee's, "
            "the claim and the worst case are always there.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """How private a run is, per agent and observer: epsilon, mu and an attacker's power. Needs no data."""
    named = [name.strip() for name in answers.split(",") if name.strip()]
    run = target if target is not None and target.is_dir() else None
    if run is not None and (preset or changes):
        raise ConfigError("A run is accounted as it was: leave --preset and --set away.")
    asked = None if run is not None else config.read(target, preset, changes)
    with signs_of_life(err, "account") as progress:
        progress("planning")
        from topdp.privacy.observers.coalitions import expect_coalition
        from topdp.runs import builders, planning
        from topdp.runs.run_folder import RunFolder
        from topdp.views.terminal import tables

        if asked is None:
            assert run is not None
            if coalition > 1:
                expect_coalition(coalition, RunFolder.open(run).plan.agents)
            wanted, plan, found = planning.account_of_run(run, named, progress)
        else:
            wanted, graph = planning.asking(asked, named), builders.graph(asked)
            if coalition > 1:
                expect_coalition(coalition, graph.agents)
            counts = builders.counts(wanted, graph.agents)
            plan, found = planning.plan_and_account(wanted, graph, counts, progress)
        if coalition > 1:
            progress(f"accounting coalitions of {coalition}")
        together = planning.coalition_account(plan, found, coalition, wanted.seed, progress)
    if as_json:
        print_json(planning.account_json(wanted, plan, found, together))
        return
    show(*tables.account(wanted, plan, found, together))


def recommend(
    target: ConfigFile = None,
    preset: Preset = None,
    changes: Changes = None,
    as_json: Json = False,
) -> None:
    """Which method and settings for your agents, graph, records, budget and colluders. Needs no data.

    Says for each method how much noise it leaves, and gives a command to start from. For example:
    topdp recommend --set topology.agents=12 --set privacy.epsilon=2 --set privacy.colluders=3
    """
    wanted = config.read(target, preset, changes)
    with signs_of_life(err, "recommend") as progress, going_on(BEGINS_ANEW):
        progress("planning")
        from topdp.runs import builders
        from topdp.runs.recommend import recommend as ask
        from topdp.views.terminal import tables

        made = builders.graph(wanted)
        found = ask(wanted, made, builders.counts(wanted, made.agents), progress)
    given = [str(target)] * (target is not None) + ["--preset", str(preset)] * (preset is not None)
    details = found.details([*given, *(part for change in changes or [] for part in ("--set", change))])
    if as_json:
        print_json(details)
        return
    show(tables.options(details["options"]), *found.reasons, details["command"])


def audit(
    target: Target = None,
    preset: Preset = None,
    changes: Changes = None,
    owner: Annotated[
        int | None, typer.Option("--owner", help="Whose records: by default the agent that loses most.")
    ] = None,
    observer: Annotated[
        str, typer.Option("--observer", help="Who looks: worst, all, outsider, an agent, or several: 1,4.")
    ] = "worst",
    sees: Annotated[
        str | None,
        typer.Option("--sees", help="received, estimates or all: by default what the guarantee is against."),
    ] = None,
    canaries: Annotated[
        int | None, typer.Option("--canaries", help="By default 1000, or as many as fit.")
    ] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="Of all bounds at once.")] = 0.95,
    delta: Annotated[float | None, typer.Option("--delta", help="By default that of the run.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of coins, noise and samples.")] = 0,
    folder: Out = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Only what real agents have recorded; refused without.")
    ] = False,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Tries to find canaries in one agent's records: epsilon is at least so much, beside what was proved.

    Executes the plan of a configuration, or the very plan of a run, once more with canaries in it. Of agents
    that have rehearsed with canaries it takes what they recorded.
    """
    run = target if target is not None and target.is_dir() else None
    if run is not None and (preset or changes):
        raise ConfigError("A run is audited as it was: leave --preset and --set away.")
    wanted = None if run is not None else config.read(target, preset, changes)
    with signs_of_life(err, "audit") as progress, going_on(BEGINS_ANEW):
        progress("loading torch")
        from topdp import audit as audits
        from topdp.audit.audit_folder import expect_room, keep, room_for
        from topdp.audit.rehearsal_record import recorded_in
        from topdp.runs.pictures.learning_curves import heading
        from topdp.views.terminal import tables

        if folder is not None:
            expect_room(folder)  # before the account, which may take minutes
        asked = audits.Question(owner, observer, sees, canaries, confidence, delta, seed)
        notes = recorded_in(run) if run is not None else None
        if recorded and notes is None:
            raise audits.AuditError(
                "--recorded: expected the folder of agents that rehearsed with canaries, got "
                f"{target or 'none'}, which has no canaries.npz. Make one with "
                "`topdp federation demo --rehearse`, or leave --recorded away."
            )
        if notes is not None:
            from topdp.agents.development.rehearsal_audit import of_notes

            made = of_notes(notes, asked, progress)
        elif wanted is None:
            assert run is not None
            made = audits.of_run(run, asked, device, progress)
        else:
            made = audits.of_config(wanted, asked, device, progress)
        place = folder or new_place("audits", made.config)
        with room_for(place):
            details = keep(made.carry_out(progress), place, heading([made.config], made.agents))
    if as_json:
        print_json(details)
    else:
        show(*tables.audit(details), f"Everything is in {place}")


def calibrate(
    epsilon: Annotated[float, typer.Option("--epsilon", help="The budget.")],
    releases: Annotated[
        int,
        typer.Option("--releases", min=1, help="T + 1 for a run of T rounds: one stands before the loop."),
    ],
    records: Annotated[int, typer.Option("--records", min=1, help="Records of one agent.")],
    delta: Annotated[float, typer.Option("--delta")] = 1e-5,
    clip: Annotated[float, typer.Option("--clip", help="Scales the noise; sigma is per unit of clip.")] = 1.0,
    adjacency: Annotated[str, typer.Option("--adjacency", help="add-remove or replace-one.")] = "add-remove",
    cycle: Annotated[
        int | None, typer.Option("--cycle", help="Fixed batches of this size in a cycle.")
    ] = None,
    poisson: Annotated[
        int | None, typer.Option("--poisson", help="Poisson batches of this mean size.")
    ] = None,
    as_json: Json = False,
) -> None:
    """The noise that each published calibration asks for a budget, side by side.

    For one agent that releases its gradient so many times under fresh noise. A run of T rounds makes T + 1
    releases. sigma is the paper's: noise standard deviation per unit of clip, on the mean gradient.
    """
    with signs_of_life(err, "calibrate") as progress:
        from topdp.privacy.published.calibration_table import side_by_side
        from topdp.views.terminal import tables

        found = side_by_side(epsilon, delta, releases, records, clip, adjacency, cycle, poisson, progress)
    if as_json:
        print_json(found)
    else:
        show(tables.calibrations(found))
