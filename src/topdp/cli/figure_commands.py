"""The commands `topdp graph` and `topdp reproduce`, which draw graphs and the figures of the paper."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from topdp.cli.shared_options import Changes, ConfigFile, Device, Out, Preset, continue_with
from topdp.runs import config
from topdp.runs.config import ConfigError
from topdp.runs.progress_display import show_progress
from topdp.views.terminal.console import Json, err, print_result


def graph(
    file: ConfigFile = None,
    preset: Preset = None,
    changes: Changes = None,
    kind: Annotated[str | None, typer.Option("--topology", help="Same as --set topology.kind=...")] = None,
    agents: Annotated[int | None, typer.Option(help="Same as --set topology.agents=...")] = None,
    picture: Annotated[Path, typer.Option("--out", help="The picture: .png, .svg or .pdf.")] = Path(
        "graph.png"
    ),
    as_json: Json = False,
) -> None:
    """Describe and draw a graph.

    Prints degrees, diameter, spectral gap and the covered directed edges, with their covers in small graphs.
    """
    extra = {"topology.kind": kind, "topology.agents": agents}
    options = [f"{key}={value}" for key, value in extra.items() if value is not None]
    run_config = config.read(file, preset, [*(changes or []), *options])
    with show_progress(err, "graph") as progress:
        from topdp import topology
        from topdp.runs.run_outline import RunOutline
        from topdp.views.pictures.graph_picture import draw, listed_sets
        from topdp.views.terminal import tables

        drawn = RunOutline.of(run_config).graph
        facts = topology.describe(drawn, run_config.method.alpha)
        progress("drawing")
        draw(drawn, picture)
    parts: list[object] = [tables.facts(f"{drawn.name}, {drawn.agents} agents", facts)]
    parts += listed_sets(drawn)
    print_result(as_json, {**facts, "picture": str(picture)}, *parts, f"The picture is {picture}")


def reproduce(
    figure: Annotated[
        str | None,
        typer.Argument(
            metavar="FIGURE",
            help="fig2 to fig12, by the paper's numbers; frontier-mnist (or another data set); readings; "
            "several with commas; or all. Without it, the command lists them.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small runs: minutes on two cores.")] = False,
    lens: Annotated[
        str, typer.Option(help="printed, same, honest, or several with commas.")
    ] = "printed,same,honest",
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Only redo pictures and verdicts, from the CSV files.")
    ] = False,
    minutes: Annotated[
        float, typer.Option(help="Start no more runs after this time; results are kept.")
    ] = float("inf"),
    folder: Out = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Reproduce the paper's figures, or list them.

    Each figure is computed under three lenses, and each claim gets a verdict. Continues earlier work.
    Results go to --out, else to reproduction/, or reproduction-quick/ with --quick.
    """
    if not minutes >= 0:
        raise ConfigError(f"--minutes: expected a number >= 0, got {minutes}.")
    if figure is None:
        _list_figures(as_json, quick or redraw or folder is not None)
        return
    out_folder = folder or Path("reproduction-quick" if quick else "reproduction")
    how = f"the same command; finished runs are in {out_folder}."
    with show_progress(err, "reproduce", "loading torch") as progress, continue_with(how):
        from topdp.experiments import reproduce
        from topdp.experiments.lenses import FULL_SCALE, QUICK_SCALE
        from topdp.runs.assembly import choose_device
        from topdp.views.terminal import tables

        names, lenses = reproduce.named_figures(figure), reproduce.named_lenses(lens)
        scale = QUICK_SCALE if quick else FULL_SCALE
        if redraw:
            progress("drawing")
            done = reproduce.redraw(names, lenses, scale, out_folder)
        else:
            named = str(choose_device(device))
            done = reproduce.reproduce(
                names, lenses, scale, named, out_folder, progress.announce, 60 * minutes
            )
    facts = {"out": str(out_folder), **asdict(done)}
    verdicts = [tables.verdicts(facts["verdicts"])] if done.verdicts else []
    quick_remark = [reproduce.QUICK_REMARK] if quick else []
    where = f"Figures, numbers and verdicts are in {out_folder}"
    print_result(as_json, facts, *verdicts, *quick_remark, where)


def _list_figures(as_json: bool, is_asked_to_run: bool) -> None:
    """Print the figures with their captions and commands."""
    with show_progress(err, "reproduce", "loading torch"):
        from topdp.experiments import reproduce
        from topdp.views.terminal import tables

        captions = reproduce.captions()
    if is_asked_to_run:
        raise ConfigError(
            "Expected a figure, or all, with --quick, --redraw or --out, got none. Name one: "
            f"{', '.join(reproduce.FIGURE_NAMES)}, all."
        )
    print_result(as_json, {"figures": captions}, tables.captions(captions))
