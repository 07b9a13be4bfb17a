"""The commands `topdp run`, `compare`, `sweep` and `export`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from topdp.base.progress import titled
from topdp.cli import shared_options as options
from topdp.runs import config
from topdp.runs.config import ConfigError, RunConfig
from topdp.runs.progress_display import show_progress
from topdp.simulator.ranks.torchrun_environment import expect_one_process, leads, started_together
from topdp.views.terminal.console import Json, err, print_result

if TYPE_CHECKING:
    from topdp.runs.ray_cluster import RayCluster
    from topdp.runs.result import Result
    from topdp.runs.sweep_grid import SweepPoint

OWN_RECORDS = (
    "For records of your own: topdp recommend --set data.name=FILE --set data.schema=SCHEMA prints a command "
    "with settings that follow from your agents, records and budget."
)


def run(
    file: options.ConfigFile = None,
    preset: options.Preset = None,
    lens: options.Lens = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget, privacy.epsilon.")] = None,
    method: Annotated[str | None, typer.Option(help="The method, method.name.")] = None,
    data: Annotated[str | None, typer.Option(help="A data set by name, or your own file.")] = None,
    schema: Annotated[
        str | None, typer.Option(metavar="FILE", help="What is publicly known of your own table.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model: linear, mlp, cnn or your own.")] = None,
    agents: Annotated[int | None, typer.Option(help="The number of agents.")] = None,
    topology: Annotated[str | None, typer.Option(help="The family of the graph, or a file.")] = None,
    rounds: Annotated[int | None, typer.Option(help="The number of rounds.")] = None,
    seed: Annotated[int | None, typer.Option(help="The public seed.")] = None,
    changes: options.Changes = None,
    folder: options.Out = None,
    device: options.Device = "auto",
    as_json: Json = False,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Continue an unfinished run.")] = None,
    abandon: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="End an unfinished run for ever, and erase its noise key."),
    ] = None,
    sinks: Annotated[
        list[str] | None,
        typer.Option("--sink", metavar="NAME", help="Also send metrics to tensorboard, mlflow or wandb."),
    ] = None,
) -> None:
    """Train once. The default is MNIST on 30 agents, a random graph and Top-DP.

    Under torchrun the ranks share the agents, and the same command continues an unfinished run.

    \b
    For example:
      topdp run --epsilon 2 --method correlated --data mine.csv --schema mine.toml

    \b
    Shipped configurations for --preset:
      default
      auto, for records of your own: --preset auto --set data.name=FILE --set data.schema=SCHEMA
      best-mnist, best-fashion-mnist, best-cifar10
      paper-mnist-sync, paper-mnist-async
      paper-cifar10-sync, paper-cifar10-async
    The paper-* presets are calibrated to `view`. With --lens they are the runs of the paper's figures:
      topdp run --preset paper-mnist-sync --lens same
    """
    shortcuts = options.Shortcuts(
        epsilon=epsilon,
        method=method,
        data=data,
        schema=schema,
        model=model,
        agents=agents,
        topology=topology,
        rounds=rounds,
        seed=seed,
    )
    changes = shortcuts.changes(changes)
    if abandon is not None:
        options.expect_nothing_else("--abandon", "run folder", file, preset, changes, folder, sinks, resume)
        _abandon(abandon, as_json)
        return
    wanted = None
    if resume is not None:
        options.expect_nothing_else("--resume", "run folder", file, preset, lens, changes, folder, sinks)
    else:
        sink_keys = [f"report.sinks={json.dumps(sinks)}"] if sinks else []
        wanted = options.read_config(file, preset, [*changes, *sink_keys], lens)
    title = str(resume) if wanted is None else wanted.method.name
    if (on_ranks := started_together()) and resume is None and folder is None:
        raise ConfigError(
            "Expected --out with torchrun, got none. Add --out, so that a restarted run finds its folder."
        )
    with show_progress(err if leads() else Console(quiet=True), title, "loading torch") as progress:
        from topdp.runs import run as runs
        from topdp.views.terminal import tables

        result: Result | None
        if on_ranks:
            from topdp.runs.ranked_run import run_on_ranks

            out_folder = resume or folder
            assert out_folder is not None
            result = run_on_ranks(wanted, out_folder, device, progress)
            if result is None:
                return  # rank 0 prints the result
        elif wanted is None:
            assert resume is not None
            result = runs.resume(resume, device, progress)
        else:
            result = runs.run(wanted, folder or options.new_folder("runs", wanted), device, progress)
    table = tables.runs({result.config.method.name: result.summary()})
    stopped = [] if result.stopped is None else [result.stopped.statement]
    where = f"Results are in {result.folder}"
    then = [f"Next: topdp report {result.folder} shows curves, graph and privacy in one HTML page."]
    if not (file or preset or changes or resume):
        then.append(OWN_RECORDS)
    print_result(as_json, result.summary(), *table, *stopped, where, *then)


def _abandon(path: Path, as_json: bool) -> None:
    with show_progress(err, "abandon", "loading torch"):
        from topdp.runs import run as runs

        runs.abandon(path)
    words = f"The run in {path} is abandoned: its noise key and checkpoints are erased."
    print_result(as_json, {"run": str(path), "state": "abandoned"}, words)


def compare(
    file: options.ConfigFile = None,
    preset: options.Preset = None,
    lens: options.Lens = None,
    changes: options.Changes = None,
    methods: Annotated[str, typer.Option(help="Comma-separated method names.")] = "no-noise,plain,top",
    alone: Annotated[
        bool, typer.Option("--alone", help="Also train each agent by itself, and show what each gains.")
    ] = False,
    folder: options.Out = None,
    device: options.Device = "auto",
    as_json: Json = False,
    seeds: options.Seeds = 1,
) -> None:
    """Compare methods on the same graph, data and seed.

    Prints one table and draws one figure. After an interruption, the same command with the same
    --out continues. With --alone, the baseline is each agent by itself with differential privacy: its own
    records, its own budget, the same steps. What each agent gains is in gains.csv.
    """
    expect_one_process("compare")
    names = dict.fromkeys(part.strip() for part in methods.split(","))
    names |= dict.fromkeys(["alone"] * alone)
    seed = f"seed={config.read(file, preset, changes).seed}"  # one seed for all methods, also if it is random
    wanted = {
        name: options.read_config(file, preset, [*(changes or []), seed, *_of_method(name, alone)], lens)
        for name in names
    }
    out_folder = folder or Path("runs") / f"compare-{datetime.now():%Y%m%d-%H%M%S}"
    how = f"the same command and --out {out_folder}"
    if seeds > 1:
        _compare_seeds(wanted, seeds, out_folder, device, as_json, how)
        return
    results: dict[str, Result] = {}
    with show_progress(err, "compare", "loading torch") as progress, options.continue_with(how):
        from topdp.runs import run as runs
        from topdp.runs.pictures.learning_curves import curves, heading
        from topdp.runs.run_outline import RunOutline, why_plans_are_equal
        from topdp.views.terminal import tables

        # An error in the last method is reported before the first one runs.
        outlines = {name: RunOutline.of(method) for name, method in wanted.items()}
        for name, outline in outlines.items():
            results[name] = runs.run_or_continue(outline, out_folder / name, device, titled(progress, name))
        progress("drawing")
        title = heading(list(wanted.values()), [next(iter(results.values())).plan.agents])
        evaluated = {name: result.metrics for name, result in results.items() if result.metrics}
        picture = curves(evaluated, out_folder / "compare.png", title) if evaluated else None
    summaries = {name: result.summary() for name, result in results.items()}
    of_plan: dict[str, list[str]] = {}  # the methods of each plan, by its digest
    for name, result in results.items():
        of_plan.setdefault(result.plan.digest(), []).append(name)
    equal = [
        f"{', '.join(names)}: one plan, so one run. {why_plans_are_equal([outlines[n] for n in names])}"
        for names in of_plan.values()
        if len(names) > 1
    ]
    figure = [] if picture is None else [f"The figure is {picture}"]
    figure.append(f"Next: topdp report {out_folder} shows all runs in one HTML page.")
    seed_of = {name: result.config.seed for name, result in results.items()}
    lines = {name: {seed_of[name]: metrics[-1]} for name, metrics in evaluated.items()}
    gains, sentences = _gains(lines, out_folder)
    facts = {"out": str(out_folder), "methods": summaries, **gains}
    print_result(as_json, facts, *tables.runs(summaries), *equal, *sentences, *figure)


def _of_method(name: str, alone: bool) -> list[str]:
    """Return the changes for a method. Agents that train by themselves mix nothing, in any mode or rule."""
    unmixed = ["method.mode=sync", "robust.rule=mean"] if alone and name == "alone" else []
    return [f"method.name={name}", *unmixed]


def _gains(
    evaluations: Mapping[str, Mapping[int, Mapping[str, Any]]], place: Path
) -> tuple[dict[str, Any], list[str]]:
    """Write what each agent gains over training alone. Return it for JSON and in sentences.

    Both are empty if `alone` is not among the methods.
    """
    from topdp.learning.metrics import larger_is_better
    from topdp.runs import alone_gains

    gains = alone_gains.gains_over_alone(evaluations)
    if gains is None:
        return {}, []
    alone_gains.write_gains(gains, place)
    where = f"What each agent gains is in {place / alone_gains.GAINS_FILE}"
    sentences = alone_gains.gain_sentences(gains, larger_is_better(gains["metric"]))
    return {"gains": gains}, [*sentences, where]


def _compare_seeds(
    wanted: dict[str, RunConfig], seeds: int, place: Path, device: str, as_json: bool, how: str
) -> None:
    with show_progress(err, "compare", "loading torch") as progress, options.continue_with(how):
        from topdp.runs import sweep, sweep_grid

        points = sweep_grid.resolved_points([
            sweep_grid.GridPoint(
                f"{name}/seed-{seed}", {"method": name}, seed, sweep_grid.with_seed(method, seed)
            )
            for name, method in wanted.items()
            for seed in range(method.seed, method.seed + seeds)
        ])  # fmt: skip
        sweep.run_all(points, place, device, progress, how)
    _show_points(points, place, as_json, along_rounds=True)


def _show_points(points: Sequence[SweepPoint], place: Path, as_json: bool, along_rounds: bool) -> None:
    """Write the numbers and the picture of finished runs, and print their table.

    `along_rounds`: whether the horizontal axis shows rounds; otherwise it shows a configuration key.
    """
    with show_progress(err, "results", "drawing"):
        from topdp.runs import sweep, sweep_summary
        from topdp.runs.pictures.learning_curves import heading
        from topdp.views.pictures import sweep_pictures
        from topdp.views.terminal import tables

        spreads = sweep.spreads_of(place, points)
        sweep_summary.write_csv(spreads, place)
        title = heading([point.config for point in points], [point.run.graph.agents for point in points])
        gains, sentences = dict[str, Any](), list[str]()
        if along_rounds:
            by_method = {spread.chosen["method"]: spread for spread in spreads}
            figure = sweep_pictures.curves(by_method, place / "compare.png", title)
            lines = {
                name: {run["seed"]: run["metrics"] for run in spread.done if run["metrics"]}
                for name, spread in by_method.items()
            }
            gains, sentences = _gains(lines, place)
        else:
            figure = sweep_pictures.picture(spreads, place / "sweep.png", title)
    where = f"All runs are in {place}, their numbers in sweep.csv."
    together = sweep_summary.cost_together(spreads)
    print_result(
        as_json,
        {"out": str(place), "points": sweep_summary.summaries(spreads), "together": together, **gains},
        tables.sweep(spreads),
        *sentences,
        together,
        f"The figure is {figure}. {where}" if figure else where,
        f"Next: topdp report {place} shows all runs in one HTML page.",
    )


def sweep(
    file: options.ConfigFile = None,
    preset: options.Preset = None,
    changes: options.Changes = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V,V,...", help="Values of a key; repeat it for all combinations of several keys."
        ),
    ] = None,
    seeds: options.Seeds = 1,
    folder: options.Out = None,
    device: options.Device = "auto",
    as_json: Json = False,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Continue an interrupted sweep.")] = None,
    executor: Annotated[
        str, typer.Option(help="Where runs are computed: local, or ray for a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="Address of the Ray cluster: auto, host:port, ray://host:port, or local for a new one here."
        ),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, help="Processors (and threads) of each run on Ray; 1 by default.")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(min=0.0, help="GPUs of each run on Ray; 0 by default.")
    ] = None,
) -> None:
    """Run all combinations of settings and seeds.

    Writes one table with mean and standard deviation over seeds, CSV files and a picture. All settings are
    checked before the first run starts; finished runs are not repeated.

    \b
    For example:
      topdp sweep --over privacy.epsilon=0.5,1,2 --over method.name=plain,top
    """
    expect_one_process("sweep")
    base = None
    if resume is not None:
        options.expect_nothing_else(
            "--resume", "sweep folder", file, preset, changes, over, folder, seeds > 1
        )
    elif not over and seeds == 1:
        raise ConfigError(
            "Expected --over key=value,value or --seeds, got neither. For one run use topdp run."
        )
    machines = {"--address": address, "--cpus": cpus, "--gpus": gpus}
    _expect_executor(executor, machines, device)
    if resume is None:
        config.expect_budget_or_noise([*(changes or []), *(over or [])], "--set and --over")
        base = config.read(file, preset, changes).to_toml()
    out_folder = resume or folder or Path("sweeps") / f"{datetime.now():%Y%m%d-%H%M%S}"
    how = f"topdp sweep --resume {out_folder}"
    if executor == "ray":
        how += " --executor ray" + "".join(f" {key} {value}" for key, value in machines.items() if value)
    with show_progress(err, "sweep", "loading torch") as progress, options.continue_with(how):
        from topdp.runs import sweep as sweeps
        from topdp.runs import sweep_grid

        if base is None:
            request = sweeps.SweepRequest.read(out_folder)
        else:
            request = sweeps.SweepRequest(base, tuple(map(sweep_grid.Axis.of, over or [])), seeds)
        points = sweep_grid.resolved_points(request.points())
        joined: AbstractContextManager[RayCluster | None] = nullcontext()
        if executor == "ray":
            from topdp.runs.ray_cluster import ray_cluster

            progress("joining the cluster")
            joined = ray_cluster(address, cpus or 1, gpus or 0.0)
        with joined as cluster:
            request.keep(out_folder)
            sweeps.run_all(points, out_folder, device, progress, how, cluster)
    _show_points(points, out_folder, as_json, along_rounds=False)


def _expect_executor(executor: str, options: Mapping[str, object], device: str) -> None:
    """Raise ConfigError for an unknown executor, or for options that do not fit the executor."""
    if executor not in (executors := ["local", "ray"]):
        raise ConfigError(
            f"--executor: expected a known name, got {executor!r}.{config.did_you_mean(executor, executors)}"
        )
    of_ray = [name for name, value in options.items() if value is not None]
    if executor == "local" and of_ray:
        raise ConfigError(f"{of_ray[0]} needs --executor ray. Add --executor ray, or remove {of_ray[0]}.")
    if executor == "ray" and device != "auto":
        raise ConfigError(
            f"--device: expected auto with --executor ray, got {device!r}. Use --gpus to give runs GPUs."
        )


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    file: Annotated[Path, typer.Option("--out", metavar="FILE", help="Ends in .safetensors, .pt or .onnx.")],
    agent: Annotated[
        str,
        typer.Option(help="The agent whose network to export, by number or site, or mean for the average."),
    ] = "0",
    format: Annotated[
        str | None, typer.Option(help="safetensors, state-dict or onnx; by default as the name ends.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Export the estimates of the best evaluation, not the last.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a trained network to a file that other tools read. Reads no data."""
    with show_progress(err, "export", "loading torch"):
        from topdp.runs.model_export import export_run, format_of
        from topdp.runs.run_folder import RunFolder

        written = export_run(run, file, format, agent, best)
    facts = {"file": str(written), "format": format_of(file, format), "agent": agent, "best": best}
    network = "mean network of all agents" if agent == "mean" else f"network of agent {agent}"
    redrawable = RunFolder.open(run).config.redrawable_noise
    notes = [] if redrawable is None else [redrawable]
    facts["redrawable_noise"] = redrawable
    print_result(as_json, {"run": str(run), **facts}, f"The {network} is {written}", *notes)
