"""The commands `topdp plan`, `account`, `recommend`, `audit` and `calibrate`: the privacy of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from topdp.base.progress import titled
from topdp.cli import shared_options as options
from topdp.runs import config
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.progress_display import show_progress
from topdp.views.terminal.console import Json, err, print_result


def _run_or_config(
    target: Path | None, preset: str | None, changes: list[str] | None, lens: str | None = None
) -> Path | RunConfig:
    """Return the run folder `target`, or else the configuration that the options describe.

    Raise ConfigError for a run folder with further settings.
    """
    if target is None or not target.is_dir():
        return options.read_config(target, preset, changes, lens)
    if preset or changes or lens:
        raise ConfigError(
            "Expected no settings with the folder of a run, which has its own. Remove --preset, --lens and "
            "--set."
        )
    return target


def _as_typed(target: Path | None, preset: str | None, changes: list[str] | None) -> list[str]:
    """Return the command-line arguments that state these settings."""
    given = [str(target)] * (target is not None) + ["--preset", str(preset)] * (preset is not None)
    return given + [part for change in changes or [] for part in ("--set", change)]


def plan(
    target: options.ConfigFile = None,
    preset: options.Preset = None,
    changes: options.Changes = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE,VALUE",
            help="Compare several values of one key, for example method.name=top,correlated. "
            "Repeat the option for all combinations.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Skip everything that takes longer than about a second.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the privacy and the cost of settings before training.

    Start here. Shows noise, every privacy answer, communication and a recommended setting. Trains nothing.
    Reads records only to count them: your own files, or a data set with a partition other than iid.

    For details: account (every agent and observer of a setting or of an existing run), recommend (only the
    recommendation), calibrate (one agent's noise by every published calibration).

    \b
    For example:
      topdp plan --set privacy.epsilon=2 --beside method.name=plain,correlated
    """
    given = _as_typed(target, preset, changes)
    with show_progress(err, "plan", "planning") as progress, options.continue_with(options.START_AGAIN):
        from topdp.runs.planner.setting_answers import PlannerQuestion, recommendation, stages
        from topdp.runs.sweep_grid import columns
        from topdp.views.terminal.planned_table import planned

        compared = columns(lambda more: config.read(target, preset, [*(changes or []), *more]), beside or [])
        # Check all settings before answering the first one.
        questions = [PlannerQuestion.of(column.config) for column in compared]
        settings: list[dict[str, Any]] = []
        for column, question in zip(compared, questions, strict=True):
            report = titled(progress, column.label) if column.label else progress
            for answers in stages(question, quick, report):
                if answers["seconds_left"] > 1 and not quick:
                    progress.announce(f"about {answers['seconds_left']:.0f} s left; --quick skips this")
            if question.run.config.data.public_test and not quick and answers["gains"]["alone"] is not None:
                from topdp.runs.expected_scores import expected_scores

                answers["gains"]["expected"] = expected_scores(question.run, answers["gains"], report)
            settings.append({"label": column.label, "command": column.command(given), **answers})
        answer = {"settings": settings, "recommended": recommendation(questions[0], given, progress)}
    print_result(as_json, answer, *planned(answer))


def account(
    target: options.Target = None,
    preset: options.Preset = None,
    lens: options.Lens = None,
    changes: options.Changes = None,
    coalition: Annotated[
        int, typer.Option(min=1, help="Also account for coalitions of this many agents.")
    ] = 1,
    answers: Annotated[
        str,
        typer.Option(
            help="Further answers, separated by commas: view, adaptive, outsider. The guarantee's answer, "
            "the claim and the worst case are always included."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Print epsilon, mu and an attacker's power for every agent.

    Trains nothing. Reads records only to count them: your own files, or a data set
    with a partition other than iid.
    """
    named = [name.strip() for name in answers.split(",") if name.strip()]
    run_or_config = _run_or_config(target, preset, changes, lens)
    with show_progress(err, "account", "planning") as progress:
        from topdp.privacy.observers.coalitions import expect_coalition
        from topdp.runs import planning
        from topdp.runs.named_records import record_counts
        from topdp.runs.resolve import resolve_outline
        from topdp.runs.run_folder import RunFolder
        from topdp.runs.run_outline import RunOutline
        from topdp.views.terminal import tables

        if isinstance(run_or_config, Path):
            if coalition > 1:
                expect_coalition(coalition, RunFolder.open(run_or_config).plan.agents)
            resolved, plan, losses = planning.account_of_run(run_or_config, named, progress)
        else:
            outline = RunOutline.of(planning.with_further_answers(run_or_config, named))
            if coalition > 1:
                expect_coalition(coalition, outline.graph.agents)
            resolved = resolve_outline(outline, record_counts(outline))
            plan, losses = planning.plan_and_account(resolved, progress)
        if coalition > 1:
            progress(f"accounting coalitions of {coalition}")
        together = planning.coalition_account(plan, losses, coalition, resolved.config.seed, progress)
    print_result(
        as_json,
        planning.account_json(resolved.config, plan, losses, together),
        *tables.account(resolved.config, plan, losses, together),
    )


def recommend(
    target: options.ConfigFile = None,
    preset: options.Preset = None,
    changes: options.Changes = None,
    as_json: Json = False,
) -> None:
    """Recommend a method and settings for your federation.

    Uses your agents, graph, record counts, budget and colluders. Prints how much noise each method leaves,
    and a command to start from. Trains nothing. Reads records only to count them: your own files, or a data
    set with a partition other than iid.

    \b
    For example:
      topdp recommend --set topology.agents=12 --set privacy.epsilon=2
    """
    wanted = config.read(target, preset, changes)
    with show_progress(err, "recommend", "planning") as progress, options.continue_with(options.START_AGAIN):
        from topdp.runs.named_records import record_counts
        from topdp.runs.recommend import recommend as recommend_method
        from topdp.runs.run_outline import RunOutline
        from topdp.views.terminal import tables

        outline = RunOutline.of(wanted)
        advice = recommend_method(wanted, outline.graph, record_counts(outline), progress)
    details = advice.details(_as_typed(target, preset, changes))
    print_result(as_json, details, tables.options(details["options"]), *advice.reasons, details["command"])


def audit(
    target: options.Target = None,
    preset: options.Preset = None,
    changes: options.Changes = None,
    owner: Annotated[
        int | None,
        typer.Option(
            help="The agent whose records are attacked; by default the one with the largest epsilon."
        ),
    ] = None,
    observer: Annotated[
        str,
        typer.Option(
            help="Who attacks: worst (learns most), all (together), outsider, an agent, or several: 1,4."
        ),
    ] = "worst",
    sees: Annotated[
        str | None,
        typer.Option(
            help="What the observer sees: received, estimates or all; by default as the guarantee assumes."
        ),
    ] = None,
    canaries: Annotated[
        int | None, typer.Option(help="Number of canaries; by default 1000, or as many as fit.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Joint confidence of all bounds.")] = 0.95,
    delta: Annotated[float | None, typer.Option(help="By default the delta of the run.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of coins and places.")] = 0,
    folder: options.Out = None,
    recorded: Annotated[
        bool, typer.Option("--recorded", help="Fail unless the folder holds recordings of a rehearsal.")
    ] = False,
    device: options.Device = "auto",
    as_json: Json = False,
) -> None:
    """Attack one agent's records with canaries.

    Prints a lower bound on epsilon beside the proved upper bound. Executes the plan of a configuration or of
    a run, with canaries in place of some records. For agents that rehearsed with canaries, it evaluates their
    recordings.
    """
    wanted = _run_or_config(target, preset, changes)
    with show_progress(err, "audit", "loading torch") as progress, options.continue_with(options.START_AGAIN):
        from topdp import audit as audits
        from topdp.audit.audit_folder import write_audit
        from topdp.audit.rehearsal_record import rehearsal_folder
        from topdp.runs.pictures.learning_curves import heading
        from topdp.runs.run import prepared_folder
        from topdp.views.terminal import tables

        request = audits.AuditRequest(
            owner=owner,
            observer=observer,
            sees=sees,
            canaries=canaries,
            confidence=confidence,
            delta=delta,
            seed=seed,
        )
        recordings = rehearsal_folder(wanted) if isinstance(wanted, Path) else None
        if recorded and recordings is None:
            raise audits.AuditError(
                "--recorded: expected the folder of agents that rehearsed with canaries, got "
                f"{target or 'none'}, which has no canaries.npz. Create one with "
                "`topdp federation demo --rehearse`, or remove --recorded."
            )
        with prepared_folder(folder):  # before the account, which may take minutes
            if recordings is not None:
                from topdp.agents.development.rehearsal_audit import of_recordings

                prepared = of_recordings(recordings, request, progress)
            elif isinstance(wanted, Path):
                prepared = audits.of_run(wanted, request, device, progress)
            else:
                prepared = audits.of_config(wanted, request, device, progress)
            out_folder = folder or options.new_folder("audits", prepared.config)
            title = heading([prepared.config], [prepared.agents])
            details = write_audit(prepared.execute(progress), out_folder, title)
    print_result(as_json, details, *tables.audit(details), f"Results are in {out_folder}")


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The budget of one agent.")],
    releases: Annotated[int, typer.Option(min=1, help="Number of gradient releases: T + 1 for T rounds.")],
    records: Annotated[int, typer.Option(min=1, help="Records of one agent.")],
    delta: Annotated[float, typer.Option(help="The delta of the budget.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="Bound on gradient norms; sigma is per unit of clip.")] = 1.0,
    adjacency: Annotated[str, typer.Option(help="add-remove or replace-one.")] = "add-remove",
    cycle: Annotated[int | None, typer.Option(help="Cyclic batches of this size.")] = None,
    poisson: Annotated[int | None, typer.Option(help="Poisson batches of this mean size.")] = None,
    as_json: Json = False,
) -> None:
    """Print the noise that published calibrations require.

    The budget is that of one agent, which releases its gradient --releases times, each time with fresh noise.
    Sigma, as in the paper, is the standard deviation of the noise on the mean gradient, per unit of clip.
    """
    with show_progress(err, "calibrate") as progress:
        from topdp.privacy.published.calibrations import side_by_side
        from topdp.views.terminal import tables

        rows = side_by_side(epsilon, delta, releases, records, clip, adjacency, cycle, poisson, progress)
    print_result(as_json, rows, tables.calibrations(rows))
