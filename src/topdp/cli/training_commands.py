"""What trains: one run, several methods, grids of settings; and what was trained, as a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from topdp.base.progress import Progress, titled
from topdp.cli.shared_options import Changes, ConfigFile, Device, Out, Preset, Seeds, going_on, new_place
from topdp.runs import config
from topdp.runs.config import ConfigError, RunConfig
from topdp.simulator.ranks.torchrun_environment import expect_one_process, leads, started_together
from topdp.views.terminal.console import Json, err, print_json, show
from topdp.views.terminal.progress_display import signs_of_life

if TYPE_CHECKING:
    from topdp.runs.cluster_sweep import Cluster
    from topdp.runs.result import Result
    from topdp.runs.sweep_summary import Spread


def run(
    file: ConfigFile = None,
    preset: Preset = None,
    changes: Changes = None,
    folder: Out = None,
    device: Device = "auto",
    as_json: Json = False,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Continue an unfinished run.")
    ] = None,
    sinks: Annotated[
        list[str] | None,
        typer.Option("--sink", metavar="NAME", help="Metrics go there too: tensorboard, mlflow, wandb."),
    ] = None,
) -> None:
    """One run. Without arguments the default job: MNIST, 30 agents on a random graph, Top-DP.

    Started by torchrun, its agents are shared out over the ranks, and the same command continues.
    """
    if resume is not None and (file or preset or changes or folder or sinks):
        raise ConfigError("--resume takes its configuration from the run folder: leave the others away.")
    sent = [f"report.sinks={json.dumps(sinks)}"] if sinks else []
    wanted = None if resume is not None else config.read(file, preset, [*(changes or []), *sent])
    title = str(resume) if wanted is None else wanted.method.name
    if (together := started_together()) and resume is None and folder is None:
        raise ConfigError("--out: expected one with torchrun: a run that is started again goes on there.")
    with signs_of_life(err if leads() else Console(quiet=True), title) as progress:
        progress("loading torch")
        from topdp.runs import run as runs
        from topdp.views.terminal import tables

        if together:
            from topdp.runs.ranked_run import run_on_ranks

            place = resume or folder
            assert place is not None
            found = run_on_ranks(wanted, place, device, progress)
            if found is None:
                return  # rank 0 says what was found
            result = found
        elif wanted is None:
            assert resume is not None
            result = runs.resume(resume, device, progress)
        else:
            place = folder or new_place("runs", wanted)
            result = runs.run(wanted, place, device, progress)
    if as_json:
        print_json(result.summary())
    else:
        show(*tables.runs({result.config.method.name: result.summary()}))
        if result.stopped is not None:
            show(result.stopped.statement)
        show(f"Everything is in {result.folder}")
        show(f"Next: topdp report {result.folder} shows curves, graph and privacy in one HTML page.")


def compare(
    file: ConfigFile = None,
    preset: Preset = None,
    changes: Changes = None,
    methods: Annotated[
        str, typer.Option("--methods", help="Comma-separated method names.")
    ] = "no-noise,plain,top",
    folder: Out = None,
    device: Device = "auto",
    as_json: Json = False,
    seeds: Seeds = 1,
) -> None:
    """Several methods on the same graph, data and seed: one table, one figure.

    Broken off, the same command with the --out of before reads what is done and continues.
    """
    expect_one_process("compare")
    wanted = {
        name: config.read(file, preset, [*(changes or []), f"method.name={name}"])
        for name in dict.fromkeys(part.strip() for part in methods.split(","))
    }
    place = folder or Path("runs") / f"compare-{datetime.now():%Y%m%d-%H%M%S}"
    if seeds > 1:
        _compare_seeds(wanted, seeds, place, device, as_json)
        return
    results: dict[str, Result] = {}
    with signs_of_life(err, "compare") as progress, going_on(f"the same command and --out {place}"):
        progress("loading torch")
        from topdp.runs import builders
        from topdp.runs import run as runs
        from topdp.runs.pictures.learning_curves import curves, heading
        from topdp.views.terminal import tables

        for one in wanted.values():
            builders.method(one)  # a fault in the last method is found before the first is run
        for name, one in wanted.items():
            results[name] = runs.run_or_continue(one, place / name, device, titled(progress, name))
        progress("drawing")
        title = heading(list(wanted.values()), next(iter(results.values())).plan.agents)
        evaluated = {name: result.metrics for name, result in results.items() if result.metrics}
        picture = curves(evaluated, place / "compare.png", title) if evaluated else None
    if as_json:
        print_json({"out": str(place), "methods": {name: r.summary() for name, r in results.items()}})
    else:
        show(*tables.runs({name: r.summary() for name, r in results.items()}))
        for names in _of_one_plan(results):
            show(
                f"{', '.join(names)}: one plan, so one run. {builders.why_alike([wanted[n] for n in names])}"
            )
        if picture is not None:
            show(f"The figure is {picture}")


def _of_one_plan(results: dict[str, Result]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name, result in results.items():
        groups.setdefault(result.plan.digest(), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _compare_seeds(wanted: dict[str, RunConfig], seeds: int, place: Path, device: str, as_json: bool) -> None:
    how = f"the same command and --out {place}"
    with signs_of_life(err, "compare") as progress, going_on(how):
        progress("loading torch")
        from topdp.runs import builders, sweep, sweep_grid, sweep_summary
        from topdp.runs.pictures.learning_curves import heading
        from topdp.views.pictures import sweep_pictures

        points = sweep_grid.checked([
            sweep_grid.Point(
                f"{name}/seed-{seed}", {"method": name}, seed, one.model_copy(update={"seed": seed})
            )
            for name, one in wanted.items()
            for seed in range(one.seed, one.seed + seeds)
        ])  # fmt: skip
        sweep.run_all(points, place, device, progress, how)
        progress("drawing")
        found = sweep.found(place, points)
        title = heading(list(wanted.values()), builders.graph(points[0].config).agents)
        figure = sweep_pictures.curves(
            {one.chosen["method"]: one for one in found}, place / "compare.png", title
        )
        sweep_summary.write_csv(found, place)
    _show_spreads(found, place, figure, as_json)


def _show_spreads(found: list[Spread], place: Path, figure: Path | None, as_json: bool) -> None:
    from topdp.runs import sweep_summary
    from topdp.views.terminal import sweep_table

    if as_json:
        print_json({"out": str(place), "points": sweep_summary.summaries(found)})
        return
    show(sweep_table.table(found), sweep_summary.cost_together(found))
    show(f"{f'The figure is {figure}; e' if figure else 'E'}very run is in {place}, numbers in sweep.csv")


def sweep(
    file: ConfigFile = None,
    preset: Preset = None,
    changes: Changes = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over", metavar="KEY=V,V,...", help="Try these values of a key; several keys: all combinations."
        ),
    ] = None,
    seeds: Seeds = 1,
    folder: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where all runs go.")] = None,
    device: Device = "auto",
    as_json: Json = False,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="DIR", help="Go on with a sweep that was broken off.")
    ] = None,
    executor: Annotated[
        str, typer.Option("--executor", help="Who computes: local, or ray, the nodes of a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="Of the Ray cluster: auto, host:port, ray://host:port; local: a new one on this machine.",
        ),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option("--cpus", min=1, help="Processors, and threads, of each run on Ray: 1.")
    ] = None,
    gpus: Annotated[float | None, typer.Option("--gpus", min=0.0, help="GPUs of each run on Ray: 0.")] = None,
) -> None:
    """Runs over any keys and several seeds: one table with spreads, CSV files and a picture.

    For example: topdp sweep --over privacy.epsilon=0.5,1,2 --over method.name=plain,top --seeds 3.
    Every point is checked before the first is run, and what is done is not done again.
    """
    expect_one_process("sweep")
    if resume is not None and (file or preset or changes or over or folder or seeds > 1):
        raise ConfigError("--resume takes everything from the folder of the sweep: leave the others away.")
    if resume is None and not over and seeds == 1:
        raise ConfigError("Expected --over key=value,value or --seeds, got neither: use topdp run.")
    machines = {"--address": address, "--cpus": cpus, "--gpus": gpus}
    _expect_executor(executor, machines, device)
    base = None if resume is not None else config.read(file, preset, changes).to_toml()
    place = resume or folder or Path("sweeps") / f"{datetime.now():%Y%m%d-%H%M%S}"
    how = f"topdp sweep --resume {place}"
    if executor == "ray":
        how += " --executor ray" + "".join(f" {key} {value}" for key, value in machines.items() if value)
    with signs_of_life(err, "sweep") as progress, going_on(how):
        progress("loading torch")
        from topdp.runs import builders, sweep_grid, sweep_summary
        from topdp.runs import sweep as sweeps
        from topdp.views.pictures import sweep_pictures

        if base is None:
            request = sweeps.Request.read(place)
        else:
            request = sweeps.Request(base, tuple(map(sweep_grid.Axis.of, over or [])), seeds)
        points = sweep_grid.checked(request.points())
        with _machines(executor, address, cpus or 1, gpus or 0.0, progress) as cluster:
            request.keep(place)
            sweeps.run_all(points, place, device, progress, how, cluster)
        progress("drawing")
        found = sweeps.found(place, points)
        sweep_summary.write_csv(found, place)
        configs = [point.config for point in points]
        title = sweep_pictures.heading_of(configs, [builders.graph(one).agents for one in configs])
        figure = sweep_pictures.picture(found, place / "sweep.png", title)
    _show_spreads(found, place, figure, as_json)


def _expect_executor(executor: str, options: Mapping[str, object], device: str) -> None:
    if executor not in (known := ["local", "ray"]):
        raise ConfigError(f"--executor: got {executor!r}.{config.did_you_mean(executor, known)}")
    given = [name for name, value in options.items() if value is not None]
    if executor == "local" and given:
        raise ConfigError(f"{given[0]} is for --executor ray: leave it away, or name that.")
    if executor == "ray" and device != "auto":
        raise ConfigError(
            f"--device: expected auto with --executor ray, got {device!r}: runs get GPUs by --gpus."
        )


@contextmanager
def _machines(
    executor: str, address: str | None, cpus: int, gpus: float, progress: Progress
) -> Iterator[Cluster | None]:
    """None: this one."""
    if executor == "local":
        yield None
        return
    from topdp.runs.ray_cluster import ray_cluster

    progress("joining the cluster")
    with ray_cluster(address, cpus, gpus) as cluster:
        yield cluster


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    file: Annotated[Path, typer.Option("--out", metavar="FILE", help="Ends in .safetensors, .pt or .onnx.")],
    agent: Annotated[str, typer.Option("--agent", help="Whose network: a number, or mean of all.")] = "0",
    format: Annotated[
        str | None, typer.Option("--format", help="safetensors, state-dict or onnx: by default the ending's.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="At the best evaluation, instead of at the end.")
    ] = False,
    as_json: Json = False,
) -> None:
    """A trained network as a file that others can read. Reads no data."""
    with signs_of_life(err, "export") as progress:
        progress("loading torch")
        from topdp.runs.model_export import export_run, format_of

        written = export_run(run, file, format, agent, best)
    if as_json:
        told = {"file": str(written), "format": format_of(file, format), "agent": agent, "best": best}
        print_json({"run": str(run), **told})
    else:
        show(
            f"The network of {'all agents, averaged,' if agent == 'mean' else f'agent {agent}'} is {written}"
        )
