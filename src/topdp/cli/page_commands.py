"""Pages about runs: the report, and the privacy statement."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from topdp.errors import InputError
from topdp.views.terminal.console import Json, err, print_json, show
from topdp.views.terminal.progress_display import signs_of_life


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
    """Runs as one HTML file that needs no network: curves, graph, privacy, settings; several are "
    "compared."""
    with signs_of_life(err, "report") as progress:
        progress("reading")
        from topdp.views.pages.page_policy import expect_ours
        from topdp.views.pages.page_runs import runs_in
        from topdp.views.pages.report_page import write_report
        from topdp.views.pages.run_facts import run_facts

        place = file or (runs[0] if len(runs) == 1 else Path()) / "report.html"
        folders = runs_in(runs)
        expect_ours(place)  # before the work
        found = []
        for done, folder in enumerate(folders):
            progress(f"reading run {done + 1} of {len(folders)}")
            found.append(run_facts(folder))
        progress("writing")
        write_report(place, found)
    if as_json:
        print_json({"file": str(place), "runs": [str(folder.path) for folder in folders]})
    else:
        show(f"The report is {place}")


def statement(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="The folder of a run, or the state folder of an agent of one's own."
        ),
    ],
    manifest: Annotated[
        Path | None,
        typer.Option(
            "--manifest",
            metavar="FILE",
            help="Of an agent: what was agreed on, by which its books were kept.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="By default the folder of the run; of an agent the one you are in."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """What a run guarantees to whom, and what not, in plain words: YAML, and a page to print.

    Of a simulated run for all its agents. Of real agents each organisation states its own part, from its own
    books, which are read whole and not changed; books that are not whole are refused (code 4).
    """
    with signs_of_life(err, "statement") as progress:
        progress("reading")
        from topdp.views.statement.run_statement import write_statement

        of_agent = (run / "ledger.sqlite").exists()
        said = _said_of_books(run, manifest) if of_agent else _said_of_run(run, manifest)
        files = write_statement(said, folder or (Path() if of_agent else run))
    if as_json:
        print_json({"files": [str(file) for file in files], "statement": said})
    else:
        show(*said["summary"], f"The statement is {files[0]}, to print {files[1]}")


def _said_of_run(run: Path, manifest: Path | None) -> dict[str, Any]:
    from topdp.runs.run_folder import RunFolder
    from topdp.views.pages.run_facts import run_facts
    from topdp.views.statement.run_statement import statement as said_of

    if manifest is not None:
        raise InputError(
            f"--manifest: expected the state folder of an agent with it, got {run}, which has no books."
        )
    return said_of(run_facts(RunFolder.open(run), patience=0.0))


def _said_of_books(state: Path, manifest: Path | None) -> dict[str, Any]:
    from topdp.views.statement.agent_record import own_books
    from topdp.views.statement.agent_statement import own_statement

    if manifest is None:
        raise InputError(
            f"Expected --manifest FILE: {state} has the books of an agent, and whom they protect "
            "against is in the "
            "manifest that they were kept by."
        )
    return own_statement(own_books(state, manifest))
