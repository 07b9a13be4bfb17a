"""The command line: one short function per command. Arguments in, tables and exit codes out.

Exit codes are those of `topdp.errors`. Tables and `--json` go to stdout; progress and errors go to stderr.
Nothing slow is imported before a command is called, and inside it only once a first sign of life is given.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

# Spinning OpenMP threads make everything slower on a busy machine; has to be said before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import typer
from rich.table import Table

from topdp import __version__
from topdp.agents.site.commands import agent_app, federation_app
from topdp.errors import ExitCode, Interrupted, TopdpError, enough_memory
from topdp.report.progress import signs_of_life
from topdp.report.terminal import Json, err, print_json, print_text, remark, show
from topdp.settings import config
from topdp.settings.config import ConfigError, RunConfig

if TYPE_CHECKING:
    from topdp.report.spreads import Spread
    from topdp.runs.result import Result

app = typer.Typer(
    name="topdp",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# What typer raises about the arguments themselves: click's own, which newer versions carry inside.
USAGE_ERROR: Any = typer.BadParameter.__mro__[2]

data_app = typer.Typer(
    help="Data sets: fetch (and verify), list.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(data_app, name="data")
app.add_typer(agent_app, name="agent")
app.add_typer(federation_app, name="federation")

ConfigFile = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG]", help="A TOML file.", show_default=False)
]
Target = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG or RUN]", help="A TOML file, or the folder of a run.", show_default=False
    ),
]
Preset = Annotated[
    str | None, typer.Option("--preset", help=f"A shipped configuration: {', '.join(config.presets())}.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one key, for example privacy.sigma=0.1."),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where the run folder goes.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="So many seeds, from the configuration's own on.")]
BEGINS_ANEW = "the same command, which begins anew: of this one nothing is kept."
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")]


def _say_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def topdp(
    asked: Annotated[
        bool, typer.Option("--version", help="The version of topdp.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Private learning without a server: agents on a graph train one model together."""


@app.command()
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
    """One run. Without arguments the default job: MNIST, 30 agents on a random graph, Top-DP."""
    if resume is not None and (file or preset or changes or folder or sinks):
        raise ConfigError("--resume takes its configuration from the run folder: leave the others away.")
    sent = [f"report.sinks={json.dumps(sinks)}"] if sinks else []
    wanted = None if resume is not None else config.read(file, preset, [*(changes or []), *sent])
    title = str(resume) if wanted is None else wanted.method.name
    with signs_of_life(err, title) as signs:
        signs.stage("loading torch")
        from topdp.report import tables
        from topdp.report.reached import hint
        from topdp.runs import run as runs

        if wanted is None:
            assert resume is not None
            result = runs.resume(resume, device, signs.watch, signs.fetching)
        else:
            place = folder or _new_place("runs", wanted)
            result = runs.run(wanted, place, device, signs.watch, signs.fetching)
    if as_json:
        print_json(result.summary())
    else:
        show(*tables.runs({result.config.method.name: result.summary()}))
        if result.stopped is not None:
            show(result.stopped.statement)
        show(f"Everything is in {result.folder}")
        if (line := hint(result.config, result.summary())) is not None:
            show(line)


@app.command()
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
    wanted = {
        name: config.read(file, preset, [*(changes or []), f"method.name={name}"])
        for name in dict.fromkeys(part.strip() for part in methods.split(","))
    }
    place = folder or Path("runs") / f"compare-{datetime.now():%Y%m%d-%H%M%S}"
    if seeds > 1:
        _compare_seeds(wanted, seeds, place, device, as_json)
        return
    results: dict[str, Result] = {}
    with signs_of_life(err, "compare") as signs, _going_on(f"the same command and --out {place}"):
        signs.stage("loading torch")
        from topdp.report import tables
        from topdp.report.curves import curves, heading
        from topdp.runs import run as runs
        from topdp.settings import build

        for one in wanted.values():
            build.method(one)  # a fault in the last method is found before the first is run
        for name, one in wanted.items():
            signs.title = name
            results[name] = runs.run_or_continue(one, place / name, device, signs.watch, signs.fetching)
        signs.title = "compare"
        signs.stage("drawing")
        title = heading(list(wanted.values()), next(iter(results.values())).plan.agents)
        evaluated = {name: result.metrics for name, result in results.items() if result.metrics}
        picture = curves(evaluated, place / "compare.png", title) if evaluated else None
    if as_json:
        print_json({"out": str(place), "methods": {name: r.summary() for name, r in results.items()}})
    else:
        show(*tables.runs({name: r.summary() for name, r in results.items()}))
        for names in _of_one_plan(results):
            show(f"{', '.join(names)}: one plan, so one run. {build.why_alike([wanted[n] for n in names])}")
        if picture is not None:
            show(f"The figure is {picture}")


@contextmanager
def _going_on(how: str) -> Iterator[None]:
    """Ctrl-C inside says how to go on."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as stopped:
        said = str(stopped).partition(" Continue with")[0] or "Interrupted."
        raise Interrupted(f"{said} Continue with: {how}") from None


def _of_one_plan(results: dict[str, Result]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for name, result in results.items():
        groups.setdefault(result.plan.digest(), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _compare_seeds(wanted: dict[str, RunConfig], seeds: int, place: Path, device: str, as_json: bool) -> None:
    how = f"the same command and --out {place}"
    with signs_of_life(err, "compare") as signs, _going_on(how):
        signs.stage("loading torch")
        from topdp.report import spread_pictures, spreads
        from topdp.report.curves import heading
        from topdp.runs import grid, sweep
        from topdp.settings import build

        points = grid.checked([
            grid.Point(f"{name}/seed-{seed}", {"method": name}, seed, one.model_copy(update={"seed": seed}))
            for name, one in wanted.items()
            for seed in range(one.seed, one.seed + seeds)
        ])  # fmt: skip
        sweep.run_all(points, place, device, signs.titled, signs.fetching, how)
        signs.stage("drawing")
        found = sweep.found(place, points)
        title = heading(list(wanted.values()), build.graph(points[0].config).agents)
        figure = spread_pictures.curves(
            {one.chosen["method"]: one for one in found}, place / "compare.png", title
        )
        spreads.write_csv(found, place)
    _show_spreads(found, place, figure, as_json)


def _show_spreads(found: list[Spread], place: Path, figure: Path | None, as_json: bool) -> None:
    from topdp.report import spreads

    if as_json:
        print_json({"out": str(place), "points": spreads.summaries(found)})
        return
    show(spreads.table(found), spreads.cost_together(found))
    show(f"{f'The figure is {figure}; e' if figure else 'E'}very run is in {place}, numbers in sweep.csv")


@app.command()
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
) -> None:
    """Runs over any keys and several seeds: one table with spreads, CSV files and a picture.

    For example: topdp sweep --over privacy.epsilon=0.5,1,2 --over method.name=plain,top --seeds 3.
    Every point is checked before the first is run, and what is done is not done again.
    """
    if resume is not None and (file or preset or changes or over or folder or seeds > 1):
        raise ConfigError("--resume takes everything from the folder of the sweep: leave the others away.")
    if resume is None and not over and seeds == 1:
        raise ConfigError("Expected --over key=value,value or --seeds, got neither: use topdp run.")
    base = None if resume is not None else config.read(file, preset, changes).to_toml()
    place = resume or folder or Path("sweeps") / f"{datetime.now():%Y%m%d-%H%M%S}"
    how = f"topdp sweep --resume {place}"
    with signs_of_life(err, "sweep") as signs, _going_on(how):
        signs.stage("loading torch")
        from topdp.report import spread_pictures, spreads
        from topdp.runs import grid
        from topdp.runs import sweep as sweeps
        from topdp.settings import build

        if base is None:
            request = sweeps.Request.read(place)
        else:
            request = sweeps.Request(base, tuple(map(grid.Axis.of, over or [])), seeds)
        points = grid.checked(request.points())
        request.keep(place)
        sweeps.run_all(points, place, device, signs.titled, signs.fetching, how)
        signs.stage("drawing")
        found = sweeps.found(place, points)
        spreads.write_csv(found, place)
        configs = [point.config for point in points]
        title = spread_pictures.heading_of(configs, [build.graph(one).agents for one in configs])
        figure = spread_pictures.picture(found, place / "sweep.png", title)
    _show_spreads(found, place, figure, as_json)


@app.command()
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
    with signs_of_life(err, "export") as signs:
        signs.stage("loading torch")
        from topdp.runs.export import export_run, format_of

        written = export_run(run, file, format, agent, best)
    if as_json:
        told = {"file": str(written), "format": format_of(file, format), "agent": agent, "best": best}
        print_json({"run": str(run), **told})
    else:
        show(
            f"The network of {'all agents, averaged,' if agent == 'mean' else f'agent {agent}'} is {written}"
        )


@app.command()
def graph(
    file: ConfigFile = None,
    preset: Preset = None,
    changes: Changes = None,
    kind: Annotated[str | None, typer.Option("--topology", help="Same as --set topology.kind=...")] = None,
    agents: Annotated[int | None, typer.Option("--agents", help="Same as --set topology.agents=...")] = None,
    picture: Annotated[Path, typer.Option("--out", help="The picture: .png, .svg or .pdf.")] = Path(
        "graph.png"
    ),
    as_json: Json = False,
) -> None:
    """The graph: who is adjacent to whom, whose noise can cover whom, spectral gap; and a picture."""
    extra = [f"topology.kind={kind}"] * (kind is not None) + [f"topology.agents={agents}"] * (
        agents is not None
    )
    wanted = config.read(file, preset, [*(changes or []), *extra])
    with signs_of_life(err, "graph") as signs:
        from topdp import topology
        from topdp.report import tables
        from topdp.report.graph import draw
        from topdp.settings import build

        made = build.graph(wanted)
        facts = topology.describe(made, wanted.method.alpha)
        signs.stage("drawing")
        draw(made, picture)
    if as_json:
        print_json({**facts, "picture": str(picture)})
        return
    show(tables.facts(f"{made.name}, {made.agents} agents", facts))
    if made.agents <= 12:
        for i, j in made.directed.tolist():
            cover = ", ".join(map(str, sorted(made.cover_set(i, j))))
            show(f"N_{i}^{j} = {f'{{{cover}}}' if cover else 'empty: full noise'}")
    show(f"The picture is {picture}")


@app.command()
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
    with signs_of_life(err, "account") as signs:
        signs.stage("planning")
        from topdp.privacy.observers.coalitions import expect_coalition
        from topdp.report import tables
        from topdp.runs import planning
        from topdp.runs.folder import RunFolder
        from topdp.settings import build

        if asked is None:
            assert run is not None
            if coalition > 1:
                expect_coalition(coalition, RunFolder.open(run).plan.agents)
            wanted, plan, found = planning.account_of_run(run, named, signs.progress)
        else:
            wanted, graph = planning.asking(asked, named), build.graph(asked)
            if coalition > 1:
                expect_coalition(coalition, graph.agents)
            counts = build.counts(wanted, graph.agents)
            plan, found = planning.plan_and_account(wanted, graph, counts, signs.progress)
        if coalition > 1:
            signs.stage(f"accounting coalitions of {coalition}")
        together = planning.coalition_account(plan, found, coalition, wanted.seed, signs.progress)
    if as_json:
        print_json(planning.account_json(wanted, plan, found, together))
        return
    show(*tables.account(wanted, plan, found, together))


@app.command()
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
    with signs_of_life(err, "recommend") as signs, _going_on(BEGINS_ANEW):
        signs.stage("planning")
        from topdp.report import tables
        from topdp.runs.recommend import recommend as ask
        from topdp.settings import build

        made = build.graph(wanted)
        found = ask(wanted, made, build.counts(wanted, made.agents), signs.stage)
    given = [str(target)] * (target is not None) + ["--preset", str(preset)] * (preset is not None)
    command = found.command([*given, *(part for change in changes or [] for part in ("--set", change))])
    options = [asdict(option) for option in found.options]
    if as_json:
        answer = {"options": options, "changes": found.changes, "reasons": found.reasons}
        print_json({**answer, "command": command})
        return
    show(tables.options(options), *found.reasons, command)


@app.command()
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
    with signs_of_life(err, "audit") as signs, _going_on(BEGINS_ANEW):
        signs.stage("loading torch")
        from topdp import audit as audits
        from topdp.audit.folder import expect_room, keep, room_for
        from topdp.audit.recording import recorded_in
        from topdp.report import tables
        from topdp.report.curves import heading

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
            from topdp.agents.site.rehearsals import of_notes

            made = of_notes(notes, asked, signs.watch)
        elif wanted is None:
            assert run is not None
            made = audits.of_run(run, asked, device, signs.watch, signs.fetching)
        else:
            made = audits.of_config(wanted, asked, device, signs.watch, signs.fetching)
        place = folder or _new_place("audits", made.config)
        with room_for(place):
            details = keep(made.carry_out(signs.watch), place, heading([made.config], made.agents))
    if as_json:
        print_json(details)
    else:
        show(*tables.audit(details), f"Everything is in {place}")


@app.command()
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
    with signs_of_life(err, "calibrate") as signs:
        from topdp.privacy.published.side_by_side import side_by_side
        from topdp.report import tables

        found = side_by_side(epsilon, delta, releases, records, clip, adjacency, cycle, poisson, signs.stage)
    if as_json:
        print_json(found)
    else:
        show(tables.calibrations(found))


@app.command()
def reproduce(
    figure: Annotated[
        str, typer.Argument(help="1 to 8, frontier-mnist (or another data set), several with commas, or all.")
    ] = "all",
    quick: Annotated[bool, typer.Option("--quick", help="Small runs: minutes on two cores.")] = False,
    lens: Annotated[
        str, typer.Option("--lens", help="printed, same, honest, or several with commas.")
    ] = "printed,same,honest",
    redraw: Annotated[
        bool, typer.Option("--redraw", help="Pictures and verdicts again, from the CSV files; runs nothing.")
    ] = False,
    minutes: Annotated[
        float, typer.Option("--minutes", help="Begin no more runs after so many; what is done is kept.")
    ] = float("inf"),
    folder: Out = None,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """The paper's figures under three lenses, with a verdict on each claim. Continues where it was left.

    Results go to --out, else to reproduction/, or reproduction-quick/ with --quick.
    """
    if not minutes >= 0:
        raise ConfigError(f"--minutes: expected a number from 0 on, got {minutes}.")
    place = folder or Path("reproduction-quick" if quick else "reproduction")
    how = f"the same command: what is done is kept in {place}."
    with signs_of_life(err, "reproduce") as signs, _going_on(how):
        signs.stage("loading torch")
        from topdp.report import tables
        from topdp.reproduce import make
        from topdp.reproduce.lenses import FULL, QUICK
        from topdp.runs.assembly import choose_device

        names, lenses, scale = make.named_figures(figure), make.named_lenses(lens), QUICK if quick else FULL
        if redraw:
            signs.stage("drawing")
            made = make.redraw(names, lenses, scale, place)
        else:
            chosen = str(choose_device(device))
            made = make.reproduce(names, lenses, scale, chosen, place, signs.say, 60 * minutes)
    if as_json:
        print_json({"out": str(place), **made.to_json()})
    else:
        if made.verdicts:
            show(tables.verdicts(made.to_json()["verdicts"]))
        if quick:
            show(make.NOT_THE_PAPER)
        show(f"Figures, numbers and verdicts are in {place}")


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="A name that `topdp data list` shows.")],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="A folder that may already hold the files.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Puts a data set into the cache, verified against its checksums."""
    with signs_of_life(err, "data") as signs:
        from topdp.data import fetch

        found = fetch(name, data_dir=data_dir, progress=signs.fetching)
    if as_json:
        print_json({"name": name, "path": str(found.path), "source": found.source})
    else:
        show(f"{name}: verified, from {found.source}, in {found.path}")


@data_app.command("list")
def data_list(as_json: Json = False) -> None:
    """The data sets topdp knows, and whether they are in the cache."""
    from topdp.data import available

    rows = available()
    if as_json:
        print_json({row.name: {"cached": row.cached, "bytes": row.bytes} for row in rows})
        return
    table = Table("data set", "in the cache", "size", "what it is")
    for row in rows:
        table.add_row(row.name, "yes" if row.cached else "no", f"{row.bytes / 1e6:.0f} MB", row.description)
    show(table)
    if os.environ.get("TOPDP_DATA"):
        show("TOPDP_DATA names a folder, which is looked into first.")


@data_app.command("look")
def data_look(
    file: Annotated[Path, typer.Argument(help="A CSV or Parquet file of your own.")],
    delimiter: Annotated[str | None, typer.Option("--delimiter", help="Of a CSV file; a comma.")] = None,
    as_json: Json = False,
) -> None:
    """What the columns of your own file hold, for your eyes only; and a schema to fill in."""
    with signs_of_life(err, "data"):
        from topdp.data.readers.look import look
        from topdp.data.readers.schema import skeleton

        seen = look(file, delimiter)
    if as_json:
        print_json({sight.column: sight._asdict() for sight in seen})
        return
    table = Table("column", "kind", "missing", "least", "largest", "values, where they are few")
    for sight in seen:
        ends = ["" if end is None else f"{end:g}" for end in (sight.least, sight.largest)]
        table.add_row(sight.column, sight.kind, str(sight.missing), *ends, ", ".join(sight.values))
    show(table)
    remark(
        "These are facts about your records: whatever of them goes into a schema is told to all who see it, "
        "and counted in no epsilon. State what is known without the records."
    )
    print_text(skeleton(sight.column for sight in seen) + "\n")


@app.command()
def version() -> None:
    """The version of topdp."""
    show(f"topdp {__version__}")


def main() -> None:
    """Runs the command. An error of ours is one line and its exit code; any other has its traceback."""
    try:
        with enough_memory():
            code = app(standalone_mode=False)
    except TopdpError as error:
        stop(error, error.code)
    except USAGE_ERROR as error:
        error.show()
        sys.exit(error.exit_code)
    if code == ExitCode.INTERRUPTED:  # Ctrl-C before there was anything to resume
        stop("Interrupted.", ExitCode.INTERRUPTED)
    sys.exit(code if isinstance(code, int) else ExitCode.DONE)


def stop(message: object, code: int) -> None:
    err.print(f"topdp: {message}", style="bold red", markup=False, highlight=False, soft_wrap=True)
    sys.exit(code)


def _new_place(folder: str, wanted: RunConfig) -> Path:
    """A folder that nobody named: by data, method and time, with a number where that is not new."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = f"{wanted.data.name.replace('/', '_')}-{wanted.method.name}-{wanted.method.mode}-{stamp}"
    places = (Path(folder) / f"{name}{f'-{k}' if k > 1 else ''}" for k in count(1))
    return next(place for place in places if not place.exists())
