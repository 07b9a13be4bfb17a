"""Tests of what sessions and notebooks show of a result: a line, a table and a picture."""

import io

import pytest
import torch
from PIL import Image

import topdp
from topdp.errors import InputError


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    x = torch.randn(4, 60, 3)
    y = (x.sum(2) > 0).long()
    shards = topdp.Shards.from_arrays(list(zip(x[:3], y[:3], strict=True)), test=(x[3], y[3]))
    folder = tmp_path_factory.mktemp("runs") / "<b>run"
    options = {"epsilon": 2.0, "rounds": 20, "clip": 1.0, "noise_seed": 1, "out": folder}
    return topdp.train(torch.nn.Linear(3, 2), shards, topdp.topology.ring(3), **options)


def test_a_result_is_one_line_with_metrics_and_the_guarantee(result):
    accuracy = f"{result.accuracy['mean']:.2%}"
    assert f"3 agents, 20 rounds, accuracy {accuracy}, ε adaptive 2, δ 1e-05" in repr(result)


def test_a_notebook_shows_a_table_in_which_text_is_escaped(result):
    page = result._repr_html_()
    assert f"{result.accuracy['mean']:.2%}" in page and "ε worst case" in page
    assert "&lt;b&gt;run" in page and "<b>" not in page
    assert "follows from a noise seed" in page  # what the ε of this run does not mean


def test_a_notebook_shows_the_learning_curve_as_a_picture(result):
    figure = result.plot()
    assert figure.axes[0].get_ylabel().startswith("test accuracy")
    assert len(figure.axes[0].lines[0].get_xdata()) == len(result.metrics)
    with Image.open(io.BytesIO(figure._repr_png_())) as picture:
        assert picture.format == "PNG" and picture.width > 200
    assert result.plot("loss").axes[0].get_ylabel().startswith("test loss")
    with pytest.raises(InputError, match="Did you mean 'accuracy'"):
        result.plot("acuracy")
