"""Fixtures for tests of experiments: a tiny scale, and the results that it gives."""

from dataclasses import replace

import numpy as np
import pytest

from topdp.experiments import frontier, reproduce
from topdp.experiments.figures import figure_picture
from topdp.experiments.figures.figures_three_to_twelve import FIGURES
from topdp.experiments.lenses import LENSES, Scale
from topdp.runs.pictures import chart_style


def quiet(text):
    pass


FINE = chart_style._RC["savefig.dpi"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Drawing takes most of the time, so tests of this folder draw coarse pictures."""
    chart_style._RC["savefig.dpi"] = 100


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    chart_style._RC["savefig.dpi"] = FINE


@pytest.fixture(scope="package", autouse=True)
def _short_searches():
    """Shortens the searches of the frontier."""
    short = replace(frontier.QUICK_SPACE, rounds=(4,), exponents=(0.5,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(frontier.QUICK_SPACES, "mnist", {"scattering + linear": short, "mlp": short})
        yield


@pytest.fixture(scope="package")
def scale(tmp_path_factory):
    """Six agents, a few rounds, and bright stripes instead of real images."""
    folder = tmp_path_factory.mktemp("data")
    generator = np.random.default_rng(0)
    for name, shape in {"mnist": (1, 8, 8), "cifar10": (3, 16, 16)}.items():
        arrays = {}
        for part, count in (("train", 400), ("test", 100)):
            labels = generator.integers(0, 3, count)
            inputs = generator.normal(0, 0.3, (count, *shape)).astype(np.float32)
            inputs[np.arange(count), 0, labels, :] += 1.5
            arrays |= {f"{part}_inputs": inputs, f"{part}_labels": labels}
        np.savez(folder / f"{name}.npz", **arrays)
    return Scale(
        name="tiny", agents=6,
        epochs=2, rounds_per_epoch=2, honest_rounds=4, seeds=(0,), batch=5, connection=0.7,
        records=20, test_records=50,
        data={name: str(folder / f"{name}.npz") for name in ("mnist", "cifar10")},
    )  # fmt: skip


@pytest.fixture(scope="package")
def made(scale, tmp_path_factory):
    """The folder of all figures, the first under each lens, and of a frontier; and the verdicts."""
    out = tmp_path_factory.mktemp("reproduction")
    rest = [name for name in FIGURES if name != "fig3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figure_picture, "PICTURE_SUFFIXES", (".png",))
        first = reproduce.reproduce(["fig3", "frontier-mnist"], LENSES, scale, "cpu", out, quiet)
        others = reproduce.reproduce(rest, ["same"], scale, "cpu", out, quiet)
    return out, first.verdicts + others.verdicts


@pytest.fixture
def out(made):
    return made[0]
