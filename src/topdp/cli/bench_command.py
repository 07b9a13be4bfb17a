"""`topdp bench`: how fast a private round is on this machine."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from topdp.errors import InputError
from topdp.views.terminal.console import Json, err, print_json, remark, show
from topdp.views.terminal.progress_display import signs_of_life


def bench(
    agents: Annotated[int, typer.Option("--agents", min=2, help="Agents in the round.")] = 30,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Records of each agent in it.")] = 64,
    hidden: Annotated[int, typer.Option("--hidden", min=1, help="Width of the network, 784-width-10.")] = 100,
    against: Annotated[
        str,
        typer.Option(
            "--against", help="Other ways to make the round: some of ghost, hooks, vmap, loop; or none."
        ),
    ] = "ghost,hooks,vmap,loop",
    turns: Annotated[int, typer.Option("--turns", min=1, help="How often each is timed.")] = 20,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of every contestant.")] = 1,
    grows: Annotated[
        bool,
        typer.Option("--growth", help="Instead: time and memory against agents, parameters, degree, rounds."),
    ] = False,
    minutes: Annotated[
        float, typer.Option("--minutes", help="With --growth: begin no more jobs after so many.")
    ] = 10.0,
    picture: Annotated[
        Path, typer.Option("--out", help="With --growth: the picture, as .png, .svg or .pdf.")
    ] = Path("growth.png"),
    as_json: Json = False,
) -> None:
    """How fast a private round is here: beside Opacus and others, beside its floors, and as it grows.

    Records are random and nothing is kept. Opacus is timed where it is installed: pip install 'topdp[bench]'.
    """
    if not minutes >= 0:
        raise InputError(f"--minutes: expected a number from 0 on, got {minutes}.")
    with signs_of_life(err, "bench") as progress:
        progress("loading torch")
        import torch

        from topdp.experiments.bench import bench_job, bench_report, contestants, floors, growth, turn_timing
        from topdp.experiments.bench.growth_picture import draw

        torch.set_num_threads(threads)
        if grows:
            points, left_out = growth.grow(minutes, progress.say)
            found = bench_report.growth_json(points, left_out) | {"picture": str(picture) if points else None}
            if points:
                draw(points, picture, f"A private round, {threads} thread{'s' * (threads > 1)}")
        else:
            job = bench_job.Job(agents=agents, batch=batch, hidden=hidden)
            names = [name.strip() for name in against.split(",") if name.strip() not in ("", "none")]
            made = contestants.chosen(names)
            data = bench_job.Data.of(job)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="opacus")
                warnings.filterwarnings("ignore", message="Full backward hook is firing")
                progress("comparing one round without noise")
                difference = contestants.difference(job, data, made)
                progress(f"timing {', '.join(made)}")
                rounds = {name: make(job, data, job.noise_multiplier) for name, make in made.items()}
                times = turn_timing.take_turns(rounds, turns, progress)
            del rounds
            progress("timing parts and floors")
            parts, rates, whole = floors.parts_of(job, data, turns)
            found = bench_report.as_json(job, times, parts, rates, whole, difference)
    missing = not grows and len(made) <= len(names)
    if missing:
        remark(contestants.WITHOUT_OPACUS)
    if as_json:
        print_json(found)
    elif grows:
        show(bench_report.growth(found))
        for left in found["left_out"]:
            show(f"Left out, for want of time: {left}")
        if found["picture"]:
            show(f"The picture is {picture}")
    else:
        show(f"One private round: {job}", bench_report.contest(found), bench_report.floors(found))
        show(f"Without noise all contestants' rounds agree to {difference:.0e}.")
