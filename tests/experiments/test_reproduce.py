"""Tests of `reproduce` with tiny versions of all figures: runs, pictures, numbers and verdicts."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from topdp.errors import InputError
from topdp.experiments import figure_runner, frontier, lenses, reproduce
from topdp.experiments.figure_runner import FigureRuns, estimated_bytes
from topdp.experiments.figures.figures_three_to_twelve import FIGURES
from topdp.experiments.lenses import LENSES, figure_run, methods_by_label
from topdp.experiments.noise_store import NoiseStore
from topdp.experiments.run_store import run_name
from topdp.runs import run_stacks
from topdp.runs.config import ConfigError, parse, read
from topdp.runs.resolve import resolve
from topdp.runs.run import run
from topdp.runs.run_outline import RunOutline
from topdp.runs.run_stacks import stackable


def quiet(text):
    pass


# The baselines differ only under the lens `printed`.
AMONG_BASELINES = (
    "The moments accountant helps: li18-ma is above li18.",
    "In most settings optimal is above udp.",
    "In most settings optimal is above li18-ma.",
    "li18-ma, udp and optimal differ little (within 2 points).",
)


def lenses_of(name):
    return LENSES if name == "fig3" else ["same"]


def claims_under(figure, lens):
    return [claim for claim in figure.claims if lens == "printed" or claim not in AMONG_BASELINES]


def test_every_figure_writes_pictures_numbers_and_verdicts(out, scale):
    for name, figure in FIGURES.items():
        for lens in lenses_of(name):
            words = (out / f"{name}-{lens}.md").read_text()
            assert [claim for claim in figure.claims if claim in words] == claims_under(figure, lens)
            assert (out / f"{name}-{lens}.png").stat().st_size > 10_000
            with (out / f"{name}-{lens}.csv").open() as file:
                rows = list(csv.DictReader(file))
            assert {row["panel"] for row in rows} == {panel.title for panel in figure.panels(scale, lens)}
    stems = {f"{name}-{lens}" for name in FIGURES for lens in lenses_of(name)}
    notes = json.loads((out / "made.json").read_text())
    assert set(notes) == {*stems, "frontier-mnist"}
    assert all(note["seconds"] > 0 and note["runs"] > 0 for note in notes.values())
    assert "frontier-mnist.png" in (out / "frontier-mnist.md").read_text()


def test_finished_runs_are_not_repeated(out, scale, monkeypatch):
    monkeypatch.setattr(FigureRuns, "_run", lambda self, configs, sigmas: pytest.fail("ran again"))
    monkeypatch.setattr(reproduce, "draw", lambda *arguments: None)  # takes seconds each
    reproduce.reproduce(["fig3", "frontier-mnist"], LENSES, scale, "cpu", out, quiet)


def test_verdicts_are_returned_as_well(made):
    out, verdicts = made
    assert {(v.figure, v.lens, v.claim) for v in verdicts} == {
        (name, lens, claim)
        for name, figure in FIGURES.items()
        for lens in lenses_of(name)
        for claim in claims_under(figure, lens)
    }
    for v in verdicts:
        assert f"| {v.claim} | **{v.verdict}** |" in (out / f"{v.figure}-{v.lens}.md").read_text()


def test_a_folder_with_other_files_or_of_another_scale_is_refused(out, scale, tmp_path):
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(ConfigError, match="new or empty"):
        reproduce.reproduce(["fig3"], ["same"], scale, "cpu", tmp_path, quiet)
    (tmp_path / "runs" / "a run of topdp run").mkdir(parents=True)
    with pytest.raises(ConfigError, match="new or empty"):
        reproduce.reproduce(["fig3"], ["same"], scale, "cpu", tmp_path, quiet)
    with pytest.raises(ConfigError, match="full runs"):
        reproduce.reproduce(["fig3"], ["same"], replace(scale, name="quick"), "cpu", out, quiet)


def test_a_quick_figure_is_marked_and_its_noise_decays(scale, tmp_path):
    quick = replace(scale, name="quick")
    reproduce.reproduce(["fig10"], ["same"], quick, "cpu", tmp_path, quiet)
    assert "Small runs" in (tmp_path / "fig10-same.md").read_text()
    assert "Small runs" not in reproduce._table("fig10", "same", [], scale)
    for lens in LENSES:
        decaying = figure_run(lenses.QUICK_SCALE, lens, "top-dp", 0)
        assert decaying.method.noise_schedule.period < decaying.rounds / 3
        full = figure_run(lenses.FULL_SCALE, lens, "top-dp", 0)
        assert full.method.noise_schedule.period == {"honest": 33}.get(lens, 1000)


def test_a_run_with_other_noise_is_repeated(scale, tmp_path):
    config = figure_run(scale, "honest", "plain", 0)
    runs = FigureRuns(tmp_path, "cpu", test_records=lambda config: 50, progress=quiet)
    runs.execute([config])
    before = runs[config]
    (unit,) = runs.noise.unit_sigmas
    runs.noise.unit_sigmas[unit] *= 100.0
    runs.execute([config])
    assert runs[config] != before
    runs.noise.unit_sigmas[unit] /= 100.0
    runs.execute([config])
    assert runs[config] == before


def test_a_long_stack_reports_progress_between_evaluations(scale, tmp_path, monkeypatch):
    monkeypatch.setattr(figure_runner, "REPORT_INTERVAL_SECONDS", 0.0)
    messages = []
    tree = figure_run(scale, "honest", "no-noise", 0).model_dump(exclude_none=True)
    config = parse(tree | {"train": tree["train"] | {"evaluate_every": 4}}, "evaluated at the ends")
    FigureRuns(tmp_path, "cpu", test_records=lambda config: 50, progress=messages.append).execute([config])
    assert [line.split(",")[0] for line in messages[1:]] == [f"  round {t} of 4" for t in range(5)]
    assert all(line.endswith("s left in this stack") for line in messages[1:])
    assert messages[-1].endswith(" 0 s left in this stack")


def test_shards_are_loaded_once_and_the_oldest_are_evicted(scale, tmp_path, monkeypatch):
    real, loaded = run_stacks.load_shards, []

    def deal(outline, *options):
        loaded.append(outline.config.seed)
        return real(outline, *options)

    monkeypatch.setattr(run_stacks, "load_shards", deal)
    monkeypatch.setattr("topdp.runs.run_stacks.MAX_CACHED_SHARDS", 2)
    runs = FigureRuns(tmp_path, "cpu", test_records=lambda config: 50, progress=quiet)
    for seed, method in ((0, "plain"), (0, "no-noise"), (1, "plain"), (2, "plain"), (1, "top"), (0, "top")):
        runs.execute([figure_run(scale, "same", method, seed)])
    assert loaded == [0, 1, 2, 0]


def test_runs_are_stacked_and_shared_between_figures(out, scale):
    asked = [
        config
        for name, figure in FIGURES.items()
        for lens in lenses_of(name)
        for panel in figure.panels(scale, lens)
        for config in panel.configs()
    ]
    names = {run_name(config) for config in asked}
    assert len(names) < len(asked)
    assert {file.stem for file in (out / "runs").glob("*.json")} >= names


def test_lenses_choose_the_documented_noise():
    printed = {
        m: figure_run(lenses.FULL_SCALE, "printed", m, 0).privacy.sigma
        for m in methods_by_label("printed").values()
    }
    # docs/privacy.md: theorem1 24.9 times tight; moments 1.314, optimal 1.084, udp 1.286
    tight = figure_run(lenses.FULL_SCALE, "same", "top-dp", 0).privacy.sigma
    assert printed["no-noise"] is None
    assert printed["top-dp"] / tight == pytest.approx(24.93, abs=0.01)
    assert printed["li18-ma"] / tight == pytest.approx(1.314, abs=0.001)
    assert printed["optimal"] / tight == pytest.approx(1.084, abs=0.001)
    assert printed["udp"] / tight == pytest.approx(1.286, abs=0.001)
    assert figure_run(lenses.FULL_SCALE, "same", "plain", 0).privacy.sigma == tight
    honest = figure_run(lenses.FULL_SCALE, "honest", "plain", 0)
    assert honest.privacy.sigma is None and honest.data.batch == "full"


def test_the_honest_lens_meets_its_budget(scale, tmp_path):
    """Computes the `adaptive` account again with the σ that the runner scales from the unit budget."""
    from topdp.runs.planning import plan_and_account

    noise = NoiseStore(tmp_path / "sigma.json", print)
    for method, mode in (("top", "sync"), ("top", "async"), ("plain", "sync"), ("plain", "async")):
        config = figure_run(scale, "honest", method, 0, mode=mode, epsilon=2.0)
        noise.calibrate([config])
        tree = config.model_dump(exclude_none=True)
        tree["privacy"]["sigma"] = noise.sigma(config)
        calibrated = parse(tree, "calibrated")
        _, account = plan_and_account(resolve(calibrated))
        assert 1.999 < account.adaptive.largest <= 2.0
        assert list(noise.epsilon_of_all_others([config])) == [pytest.approx(account.worst_case.largest)]


def test_a_stacked_run_of_a_figure_agrees_with_the_run_alone(scale, tmp_path, monkeypatch):
    """Stacked runs have the same graph, start, batches and noise as single runs."""
    configs = [
        figure_run(scale, lens, method, seed, mode=mode)
        for lens in ("same", "honest")
        for method, mode in (("top-dp", "sync"), ("plain", "async"))
        for seed in (0, 1)
    ]
    runs = FigureRuns(tmp_path / "runs", "cpu", test_records=lambda config: 100, progress=print)
    runs.execute(configs)
    for number, config in enumerate(configs):
        monkeypatch.setattr("topdp.runs.run.curves", lambda *arguments, **named: None)
        metrics = run(config, tmp_path / str(number), "cpu").metrics
        alone = {each["round"]: each["accuracy"]["mean"] for each in metrics}
        stacked = {point["round"]: point["mean"] for point in runs[config]}
        assert alone == pytest.approx(stacked, abs=0.01)  # rounding may move a record or two


@pytest.mark.parametrize("change", ["privacy.adjacency=replace-one", "train.fading=sqrt-epoch"])
def test_settings_whose_noise_does_not_scale_from_the_unit_budget_are_refused(scale, tmp_path, change):
    runs = FigureRuns(tmp_path, "cpu", test_records=lambda config: 100, progress=print)
    with pytest.raises(InputError, match="add-remove"):
        runs.execute([read(changes=["method.name=top", "rounds=5", change])])


def test_runs_with_other_validation_records_are_not_stacked():
    def count(*changes):
        configs = [read(changes=[f"seed={seed}", "privacy.sigma=1", *changes]) for seed in (0, 1)]
        return len(stackable([*map(RunOutline.of, configs)], 1e12, estimated_bytes))

    assert count() == 1
    assert count("data.validation=0.2") == 2


def test_unknown_figures_and_lenses_are_refused():
    with pytest.raises(ConfigError, match="frontier-mnist"):
        reproduce.named_figures("nothing")
    assert reproduce.named_figures("all") == reproduce.FIGURE_NAMES
    assert reproduce.named_figures("fig3, frontier-mnist") == ["fig3", "frontier-mnist"]
    with pytest.raises(ConfigError, match="honest"):
        reproduce.named_lenses("same,honst")


def test_former_names_and_the_sketch_are_refused_with_what_to_name_instead():
    for former, now in {"1": "fig3", "6": "fig9", "7": "fig10 and fig11", "8": "fig12"}.items():
        with pytest.raises(ConfigError, match=f"figure {former} is now {now}"):
            reproduce.named_figures(former)
    with pytest.raises(ConfigError, match="sketch without data"):
        reproduce.named_figures("fig3,fig1")


def test_without_a_figure_the_command_lists_all_in_the_order_of_the_paper(topdp):
    listed = json.loads(topdp("reproduce", "--json").out)["figures"]
    assert [row["figure"] for row in listed] == [
        *(f"fig{k}" for k in range(1, 13)), *frontier.FRONTIERS, "readings"
    ]  # fmt: skip
    for row in listed[1:]:
        assert row["command"] == f"topdp reproduce {row['figure']}" and row["caption"]
        assert reproduce.named_figures(row["figure"]) == [row["figure"]]
    words = topdp("reproduce").out
    assert "fig12" in words and "CIFAR-10" in words
    done = topdp("reproduce", "--quick")
    assert done.code == 2 and "Expected a figure, or all, with --quick" in done.err


def test_the_table_of_captions_in_the_documentation_is_that_of_the_command():
    page = (Path(__file__).parents[2] / "docs" / "reproduction.md").read_text(encoding="utf-8")
    for row in reproduce.captions():
        assert any(
            row["figure"].removeprefix("fig") in line and row["caption"] in line and row["command"] in line
            for line in page.splitlines()
        ), row


def test_drawn_figures_show_the_paper_s_graphs(tmp_path, scale, monkeypatch):
    done = reproduce.reproduce(["fig2", "fig8"], ["same"], scale, "cpu", tmp_path, quiet)
    assert done.verdicts == [] and done.seconds == {"all": 0}
    for picture in ("fig2-example", "fig8-ring", "fig8-star", "fig8-tree", "fig8-mesh"):
        assert (tmp_path / f"{picture}.png").stat().st_size > 3000
    example = (tmp_path / "fig2.md").read_text()
    # the sets that the paper prints for its agent A_0
    for neighbour, others in ((1, "{2, 3}"), (4, "{2, 3}"), (2, "{1, 3, 4}"), (3, "{1, 2, 4}")):
        assert f"N_0^{neighbour} = {others}\n" in example
    assert "| star | 6 | 5 | 1 to 3 |" in (tmp_path / "fig8.md").read_text()
    (tmp_path / "fig8.md").unlink()
    reproduce.redraw(["fig8"], ["same"], scale, tmp_path)
    assert (tmp_path / "fig8.md").exists()


def test_agents_of_figure_6_include_the_30_of_figure_3():
    for lens in LENSES:
        panel, *_ = FIGURES["fig6"].panels(lenses.FULL_SCALE, lens)
        runs = {run_name(c) for c in panel.configs()}
        shared = {run_name(c) for p in FIGURES["fig3"].panels(lenses.FULL_SCALE, lens) for c in p.configs()}
        assert panel.title == "30 agents" and runs <= shared
