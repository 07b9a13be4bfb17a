"""Pages about runs: the report, and the privacy statement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from topdp.report.progress import signs_of_life
from topdp.report.terminal import Json, err, print_json, show


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, of a comparison or of a sweep.")
    ],
    file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="By default report.html beside what is in the run."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Runs as one HTML file that needs no network: curves, graph, privacy, settings; several are compared."""
    with signs_of_life(err, "report") as signs:
        signs.stage("reading")
        from topdp.pages.facts import run_facts
        from topdp.pages.folders import runs_in
        from topdp.pages.policy import expect_ours
        from topdp.pages.report import write_report

        place = file or (runs[0] if len(runs) == 1 else Path()) / "report.html"
        folders = runs_in(runs)
        expect_ours(place)  # before the work
        found = []
        for done, folder in enumerate(folders):
            signs.stage(f"reading run {done + 1} of {len(folders)}")
            found.append(run_facts(folder))
        signs.stage("writing")
        write_report(place, found)
    if as_json:
        print_json({"file": str(place), "runs": [str(folder.path) for folder in folders]})
    else:
        show(f"The report is {place}")


def statement(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    folder: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="By default the folder of the run.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What a run guarantees to whom, and what not, in plain words: YAML, and a page to print."""
    with signs_of_life(err, "statement") as signs:
        signs.stage("reading")
        from topdp.pages.facts import run_facts
        from topdp.pages.statement import statement as said_of
        from topdp.pages.statement import write_statement
        from topdp.runs.folder import RunFolder

        said = said_of(run_facts(RunFolder.open(run), patience=0.0))
        files = write_statement(said, folder or run)
    if as_json:
        print_json({"files": [str(file) for file in files], "statement": said})
    else:
        show(*said["summary"], f"The statement is {files[0]}, to print {files[1]}")
