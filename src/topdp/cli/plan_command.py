"""What is known before training: plan."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from topdp.base.progress import titled
from topdp.cli.shared_options import START_AGAIN, Changes, ConfigFile, Preset, continue_with
from topdp.runs import config
from topdp.views.terminal.console import Json, err, print_json, show
from topdp.views.terminal.progress_display import signs_of_life


def plan(
    target: ConfigFile = None,
    preset: Preset = None,
    changes: Changes = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside",
            metavar="KEY=VALUE,VALUE",
            help="Several values of one key beside each other, for example method.name=top,correlated. "
            "Given again: every combination.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out what takes longer than about a second.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Before training: noise, every answer to "how private?", what is sent, and the setting we recommend.

    Needs no data. Begin here. For more about one thing: account (every agent and observer of one setting, or
    of a run that was made), recommend (the same advice alone), calibrate (one agent's noise by every
    published calibration). For example:
    topdp plan --set privacy.epsilon=2 --beside method.name=plain,correlated
    """
    given = [str(target)] * (target is not None) + ["--preset", str(preset)] * (preset is not None)
    given += [part for change in changes or [] for part in ("--set", change)]
    with signs_of_life(err, "plan") as progress, continue_with(START_AGAIN):
        progress("planning")
        from topdp.runs.planner.setting_answers import PlannerQuestion, recommendation, stages
        from topdp.runs.planner.setting_columns import columns
        from topdp.views.terminal.planned_table import planned

        asked = columns(lambda more: config.read(target, preset, [*(changes or []), *more]), beside or [])
        questions = [
            PlannerQuestion.of(column.config) for column in asked
        ]  # all are checked before one is answered
        found: list[dict[str, Any]] = []
        for column, question in zip(asked, questions, strict=True):
            told = titled(progress, column.label) if column.label else progress
            for known in stages(question, quick, told):
                if known["seconds_left"] > 1 and not quick:
                    progress.say(f"about {known['seconds_left']:.0f} s left; --quick leaves that out")
            found.append({"label": column.label, "command": column.command(given), **known})
        answer = {"settings": found, "recommended": recommendation(questions[0], given, progress)}
    if as_json:
        print_json(answer)
    else:
        show(*planned(answer))
