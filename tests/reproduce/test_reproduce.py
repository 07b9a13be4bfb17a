"""Every figure, very small: runs, pictures, numbers and verdicts are there, and judged right."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from topdp.reproduce import make as front
from topdp.reproduce import runner, settings, store
from topdp.reproduce.figures.figure import Claim, Measured
from topdp.reproduce.kept_noise import Calibrations
from topdp.reproduce.settings import LENSES, Scale, methods, setting
from topdp.runs.run import run
from topdp.settings import build
from topdp.settings.config import ConfigError, parse, read


@pytest.fixture(scope="module")
def scale(tmp_path_factory):
    """Six agents, a few rounds, bright stripes instead of digits and things."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    for name, shape in {"mnist": (1, 4, 4), "cifar10": (3, 16, 16)}.items():
        arrays = {}
        for part, count in (("train", 400), ("test", 100)):
            labels = generator.integers(0, 3, count)
            inputs = generator.normal(0, 0.3, (count, *shape)).astype(np.float32)
            inputs[np.arange(count), 0, labels, :] += 1.5
            arrays |= {f"{part}_inputs": inputs, f"{part}_labels": labels}
        np.savez(folder / f"{name}.npz", **arrays)
    return Scale(
        "tiny", agents=6, epochs=2, epoch=2, honest_rounds=4, seeds=(0,), batch=5, connection=0.7, records=20,
        test_records=50, data={name: str(folder / f"{name}.npz") for name in ("mnist", "cifar10")},
    )  # fmt: skip


@pytest.fixture(scope="module")
def made(scale, tmp_path_factory):
    out = tmp_path_factory.mktemp("reproduction")
    front.reproduce(["1", "frontier-mnist"], LENSES, scale, "cpu", out, lambda text: None)
    front.reproduce(
        [name for name in front.FIGURES if name != "1"], ["same"], scale, "cpu", out, lambda text: None
    )
    return out


def lenses_of(number):
    return LENSES if number == "1" else ["same"]


def test_every_figure_leaves_pictures_numbers_and_verdicts(made, scale):
    for number, figure in front.FIGURES.items():
        for lens in lenses_of(number):
            words = (made / f"figure{number}-{lens}.md").read_text()
            for claim in figure.claims:
                assert (claim.sentence in words) == (lens in claim.lenses)
            assert (made / f"figure{number}-{lens}.png").stat().st_size > 10_000
            with (made / f"figure{number}-{lens}.csv").open() as file:
                rows = list(csv.DictReader(file))
            assert {row["panel"] for row in rows} == {panel.title for panel in figure.panels(scale, lens)}
    stems = {f"figure{number}-{lens}" for number in front.FIGURES for lens in lenses_of(number)}
    notes = json.loads((made / "made.json").read_text())
    assert set(notes) == {*stems, "frontier-mnist"}
    assert all(note["seconds"] > 0 and note["runs"] > 0 for note in notes.values())
    assert "frontier-mnist.png" in (made / "frontier-mnist.md").read_text()


def test_what_is_done_is_not_done_again(made, scale, monkeypatch):
    monkeypatch.setattr(runner.Runs, "_run", lambda self, configs: pytest.fail("ran again"))
    front.reproduce(["1", "frontier-mnist"], LENSES, scale, "cpu", made, lambda text: None)


def test_verdicts_are_handed_out_too(made, scale):
    again = front.reproduce(["1"], LENSES, scale, "cpu", made, lambda text: None)
    claims = front.FIGURES["1"].claims
    assert {(v.lens, v.claim) for v in again.verdicts} == {(x, c.sentence) for c in claims for x in c.lenses}
    written = (made / "figure1-same.md").read_text()
    assert all(f"| {v.claim} | **{v.verdict}** |" in written for v in again.verdicts if v.lens == "same")


def test_a_folder_of_other_things_or_of_another_scale_is_refused(made, scale, tmp_path):
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(ConfigError, match="new or empty"):
        front.reproduce(["1"], ["same"], scale, "cpu", tmp_path, lambda text: None)
    (tmp_path / "runs" / "a run of topdp run").mkdir(parents=True)
    with pytest.raises(ConfigError, match="new or empty"):
        front.reproduce(["1"], ["same"], scale, "cpu", tmp_path, lambda text: None)
    with pytest.raises(ConfigError, match="full runs"):
        front.reproduce(["1"], ["same"], replace(scale, name="quick"), "cpu", made, lambda text: None)


def test_a_quick_figure_says_so_and_its_noise_decays(scale, tmp_path):
    quick = replace(scale, name="quick")
    front.reproduce(["7"], ["same"], quick, "cpu", tmp_path, lambda text: None)
    assert "Small runs" in (tmp_path / "figure7-same.md").read_text()
    assert "Small runs" not in front._words(front.FIGURES["7"], "same", [], "figure7-same", scale)
    for lens in LENSES:
        decaying = setting(settings.QUICK, lens, "top-dp", 0)
        assert decaying.method.decay.period < decaying.rounds / 3
        full = setting(settings.FULL, lens, "top-dp", 0)
        assert full.method.decay.period == {"honest": 33}.get(lens, 1000)


def test_a_run_with_other_noise_is_run_again(scale, tmp_path):
    config = setting(scale, "honest", "plain", 0)
    runs = runner.Runs(tmp_path, "cpu", lambda config: 50, lambda text: None)
    runs.make([config])
    before = runs[config]
    (unit,) = runs.calibrations.known
    runs.calibrations.known[unit] *= 100.0
    runs.make([config])
    assert runs[config] != before
    runs.calibrations.known[unit] /= 100.0
    runs.make([config])
    assert runs[config] == before


def test_a_long_stack_says_how_far_it_is_between_its_evaluations(scale, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "TELL", 0.0)
    said = []
    tree = setting(scale, "honest", "no-noise", 0).model_dump(exclude_none=True)
    config = parse(tree | {"train": tree["train"] | {"evaluate_every": 4}}, "evaluated at the ends")
    runner.Runs(tmp_path, "cpu", lambda config: 50, said.append).make([config])
    assert [line.split(",")[0] for line in said[1:]] == [f"  round {t} of 4" for t in range(5)]
    assert all(line.endswith("s left in this stack") for line in said[1:])
    assert said[-1].endswith(" 0 s left in this stack")


def test_records_are_dealt_out_once_and_the_oldest_make_room(scale, tmp_path, monkeypatch):
    real, dealt = build.shards, []

    def deal(config, agents):
        dealt.append(config.seed)
        return real(config, agents)

    monkeypatch.setattr(build, "shards", deal)
    monkeypatch.setattr(runner, "DEALT", 2)
    runs = runner.Runs(tmp_path, "cpu", lambda config: 50, lambda text: None)
    for seed, method in ((0, "plain"), (0, "no-noise"), (1, "plain"), (2, "plain"), (1, "top"), (0, "top")):
        runs.make([setting(scale, "same", method, seed)])
    assert dealt == [0, 1, 2, 0]


def test_runs_are_stacked_and_shared_between_figures(made, scale):
    asked = [
        config
        for figure in front.FIGURES.values()
        for lens in lenses_of(figure.number)
        for panel in figure.panels(scale, lens)
        for config in panel.configs()
    ]
    names = {store.name(config) for config in asked}
    assert len(names) < len(asked)
    assert {file.stem for file in (made / "runs").glob("*.json")} >= names


def test_lenses_differ_in_noise_only_where_they_should():
    printed = {m: setting(settings.FULL, "printed", m, 0).privacy.sigma for m in methods("printed").values()}
    # paper-notes, section 2: theorem1 24.9 times tight; moments 1.314, optimal 1.084, udp 1.286
    tight = setting(settings.FULL, "same", "top-dp", 0).privacy.sigma
    assert printed["no-noise"] is None
    assert printed["top-dp"] / tight == pytest.approx(24.93, abs=0.01)
    assert printed["li18-ma"] / tight == pytest.approx(1.314, abs=0.001)
    assert printed["optimal"] / tight == pytest.approx(1.084, abs=0.001)
    assert printed["udp"] / tight == pytest.approx(1.286, abs=0.001)
    assert setting(settings.FULL, "same", "plain", 0).privacy.sigma == tight
    honest = setting(settings.FULL, "honest", "plain", 0)
    assert honest.privacy.sigma is None and honest.data.batch == "full"


def test_the_honest_lens_meets_its_budget(scale, tmp_path):
    """The σ that the runner takes from the unit budget, accounted afresh."""
    from topdp.runs.planning import plan_and_account
    from topdp.settings import build

    calibrations = Calibrations(tmp_path / "sigma.json", print)
    for method, mode in (("top", "sync"), ("plain", "async")):
        config = setting(scale, "honest", method, 0, mode=mode, epsilon=2.0)
        calibrations.make([config])
        tree = config.model_dump(exclude_none=True)
        tree["privacy"]["sigma"] = calibrations.sigma(config)
        calibrated = parse(tree, "calibrated")
        graph = build.graph(calibrated)
        _, account = plan_and_account(calibrated, graph, build.counts(calibrated, graph.agents))
        assert 1.999 < account.view.largest <= 2.0
        assert calibrations.against_all_others([config]) == [pytest.approx(account.worst_case.largest)]


def test_a_run_of_a_figure_is_that_run_alone(scale, tmp_path):
    """Whatever it was stacked with: the same graph, start, batches and noise."""
    configs = [
        setting(scale, lens, method, seed, mode=mode)
        for lens in ("same", "honest")
        for method, mode in (("top-dp", "sync"), ("plain", "async"))
        for seed in (0, 1)
    ]
    runs = runner.Runs(tmp_path / "runs", "cpu", lambda config: 100, print)
    runs.make(configs)
    for number, config in enumerate(configs):
        metrics = run(config, tmp_path / str(number), "cpu").metrics
        alone = {each["round"]: each["accuracy"]["mean"] for each in metrics}
        stacked = {point["round"]: point["mean"] for point in runs[config]}
        assert alone == pytest.approx(stacked, abs=0.01)  # rounding may move a record or two


@pytest.mark.parametrize("change", ["privacy.adjacency=replace-one", "train.fading=sqrt-epoch"])
def test_what_does_not_follow_from_the_unit_budget_by_scaling_is_refused(scale, tmp_path, change):
    runs = runner.Runs(tmp_path, "cpu", lambda config: 100, print)
    with pytest.raises(ValueError, match="add-remove"):
        runs.make([read(changes=["method.name=top", "rounds=5", change])])


def test_runs_that_hold_out_other_records_are_not_stacked():
    def stacks(*changes):
        configs = [read(changes=[f"seed={seed}", "privacy.sigma=1", *changes]) for seed in (0, 1)]
        return len(runner._stacks(configs, limit=1e12))

    assert stacks() == 1
    assert stacks("data.validation=0.2") == 2


def test_verdicts_count_cases():
    measured = Measured("same", [], None)
    for cases, word in (([True, True], "holds"), ([True, False], "partly"), ([False], "does not hold")):
        claim = Claim("x", lambda m, cases=cases: [(case, "y") for case in cases])
        assert claim.verdict(measured)[0] == word


def test_unknown_figures_are_refused():
    with pytest.raises(ConfigError, match="frontier-mnist"):
        front.chosen("9")
    assert front.chosen("all") == front.NAMES
