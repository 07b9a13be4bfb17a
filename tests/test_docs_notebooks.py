"""The notebooks and pictures of docs/ agree with the code and data that they were made from."""

import doctest
import importlib.util
import re
import time
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager

DOCS = Path(__file__).parents[1] / "docs"


def program(path):
    """Import a script of docs/ as a module."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))
        specification.loader.exec_module(module)
    return module


run = program(DOCS / "notebooks" / "run.py")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """One kernel for all notebooks, so that torch is imported once."""
    manager = KernelManager(kernel_name="python3")
    place = tmp_path_factory.mktemp("kernel")
    manager.start_kernel(cwd=str(place))
    yield manager
    manager.shutdown_kernel(now=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("file", run.NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_runs_and_its_output_is_current(file, kernel):
    kept = nbformat.read(file, as_version=4)
    began = time.process_time()
    assert run.differences(kept, run.executed(kept, kernel)) == []
    assert time.process_time() - began < 10
    assert any(run.said(cell) for cell in kept.cells), "stored without what it prints"


def test_a_stale_notebook_would_be_reported():
    assert run.difference("accuracy 93%, ε = 2.00\n", "accuracy 92%, ε = 2.00\n") is None
    assert run.difference("accuracy 93%", "accuracy 62%") is not None
    assert run.difference("north 93%", "south 93%") is not None
    assert run.difference("[picture]", "") is not None


@pytest.mark.slow
def test_pictures_that_explain_have_the_numbers_beside_them(tmp_path):
    concepts = program(DOCS / "pictures" / "concepts.py")
    answers = (DOCS / "concepts" / "answers.md").read_text(encoding="utf-8")
    (said,) = re.findall(
        r"claimed ε = ([\d.]+), view ([\d.]+), adaptive ([\d.]+), worst case ([\d.]+)", answers
    )
    assert list(said) == [f"{epsilon:.2f}" for epsilon in concepts.ring_answers().values()]
    secrets = (DOCS / "concepts" / "pair-secrets.md").read_text(encoding="utf-8")
    (times,) = re.findall(r"has ([\d.]+) times the noise of dsgd's, and the average a fifth", secrets)
    dsgd, correlated = concepts.noise("dsgd"), concepts.noise("correlated")
    assert times == f"{correlated[0] / dsgd[0]:.2g}" and dsgd[1] / correlated[1] == pytest.approx(
        5.3, abs=0.1
    )
    for draw in (concepts.rows, concepts.reuse):
        with concepts.house_style():
            assert draw(tmp_path / "one.png").stat().st_size > 10_000


def test_links_of_the_repository_lead_to_pages_of_the_site():
    """A picture that the site lacks keeps its link, which fails the build."""
    site, docstrings = (
        program(DOCS.parent / "scripts" / f"{name}.py") for name in ("site_pages", "site_docstrings")
    )
    assert [doctest.testmod(module) for module in (site, docstrings)] == [(0, 2), (0, 1)]
    shown = site.sources()
    text = "[a](docs/data.md) [b](CHANGELOG.md) [c](deploy/) ![d](none.png) ![e](docs/pictures/plan.png)"
    assert site.turned(text, "README.md", "index.md", shown) == (
        "[a](data.md) [b](changelog.md) c ![d](none.png) ![e](pictures/plan.png)"
    )
    assert (
        site.turned("[a](../data.md)", "docs/concepts/plans.md", "concepts/plans.md", shown)
        == "[a](../data.md)"
    )


def test_a_picture_links_to_its_full_size():
    """A phone shows it smaller than it was drawn."""
    pages = program(DOCS.parent / "scripts" / "site_pages.py")
    found = pages.on_page_content('<p><img alt="a" src="../pictures/a.png" /></p>', None, None, None)
    assert found.startswith('<p><a href="../pictures/a.png"') and found.endswith("/></a></p>")
    linked = '<a href="b"><img src="a.png"></a>'
    assert pages.on_page_content(linked, None, None, None) == linked
