"""The command `topdp plan`: privacy and cost of settings before training."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from topdp.base.progress import titled
from topdp.cli.shared_options import START_AGAIN, Changes, ConfigFile, Preset, continue_with
from topdp.runs import config
from topdp.views.terminal.console import Json, err, print_json, show
from topdp.views.terminal.progress_display import show_progress


def plan(
    target: ConfigFile = None,
    preset: Preset = None,
    changes: Changes = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside",
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
    given = [str(target)] * (target is not None) + ["--preset", str(preset)] * (preset is not None)
    given += [part for change in changes or [] for part in ("--set", change)]
    with show_progress(err, "plan") as progress, continue_with(START_AGAIN):
        progress("planning")
        from topdp.runs.planner.setting_answers import PlannerQuestion, recommendation, stages
        from topdp.runs.planner.setting_columns import columns
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
            settings.append({"label": column.label, "command": column.command(given), **answers})
        answer = {"settings": settings, "recommended": recommendation(questions[0], given, progress)}
    if as_json:
        print_json(answer)
    else:
        show(*planned(answer))
