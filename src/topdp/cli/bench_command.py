"""`topdp bench`: measure how fast a private round is on this machine."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from topdp.errors import InputError
from topdp.runs.progress_display import show_progress
from topdp.views.terminal.console import Json, err, print_result, remark


def bench(
    agents: Annotated[int, typer.Option(min=2, help="Agents in the round.")] = 30,
    batch: Annotated[int, typer.Option(min=1, help="Records of each agent in the round.")] = 64,
    hidden: Annotated[int, typer.Option(min=1, help="Width of the network, 784-width-10.")] = 100,
    against: Annotated[
        str, typer.Option(help="Other implementations to time: any of ghost, hooks, vmap, loop; or none.")
    ] = "ghost,hooks,vmap,loop",
    turns: Annotated[int, typer.Option(min=1, help="How often each contestant is timed.")] = 20,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every contestant.")] = 1,
    growth: Annotated[
        bool,
        typer.Option(
            "--growth", help="Measure time and memory against agents, parameters, degree and rounds instead."
        ),
    ] = False,
    minutes: Annotated[
        float, typer.Option(help="With --growth: start no more jobs after this many minutes.")
    ] = 10.0,
    picture: Annotated[
        Path, typer.Option("--out", help="With --growth: the picture, as .png, .svg or .pdf.")
    ] = Path("growth.png"),
    as_json: Json = False,
) -> None:
    """Measure the speed of a private round on this machine.

    Compares it with Opacus, if installed, and with hardware limits. Records are random, and nothing is
    stored.
    """
    if not minutes >= 0:
        raise InputError(f"--minutes: expected a number of at least 0, got {minutes}.")
    with show_progress(err, "bench", "loading torch") as progress:
        import torch

        from topdp.experiments.bench import bench_job, bench_report, contestants, floors
        from topdp.experiments.bench.growth import draw, measure_growth

        torch.set_num_threads(threads)
        if growth:
            points, left_out = measure_growth(minutes, progress)
            results = bench_report.growth_json(points, left_out)
            results["picture"] = str(picture) if points else None
            if points:
                draw(points, picture, f"A private round, {threads} thread{'s' * (threads > 1)}")
        else:
            job = bench_job.BenchJob(agents=agents, batch=batch, hidden=hidden)
            names = [name.strip() for name in against.split(",") if name.strip() not in ("", "none")]
            installed = contestants.available(names)
            data = bench_job.BenchData.of(job)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="opacus")
                warnings.filterwarnings("ignore", message="Full backward hook is firing")
                progress("comparing one round without noise")
                difference = contestants.largest_difference(job, data, installed)
                progress(f"timing {', '.join(installed)}")
                rounds = {name: make(job, data, job.noise_multiplier) for name, make in installed.items()}
                times = bench_job.take_turns(rounds, turns, progress)
            del rounds
            progress("timing parts and floors")
            parts, rates, whole = floors.measure_parts(job, data, turns)
            results = bench_report.bench_json(job, times, parts, rates, whole, difference)
            if len(installed) <= len(names):
                remark(contestants.NO_OPACUS_REMARK)
    shown: list[object]
    if growth:
        left_out_lines = [f"Left out for lack of time: {job_title}" for job_title in results["left_out"]]
        picture_line = [f"The picture is {picture}"] if results["picture"] else []
        shown = [bench_report.growth_table(results), *left_out_lines, *picture_line]
    else:
        contest, floors_table = bench_report.contest_table(results), bench_report.floors_table(results)
        agreement = f"Without noise, the rounds of all contestants differ by at most {difference:.0e}."
        shown = [f"One private round: {job}", contest, floors_table, agreement]
    print_result(as_json, results, *shown)
