"""The commands `topdp report` and `topdp statement`, which write pages about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from topdp.errors import InputError
from topdp.runs.progress_display import show_progress
from topdp.views.terminal.console import Json, err, print_result


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Folders of runs, of a comparison or of a sweep.")
    ],
    file: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The page. Default: report.html in the run's folder."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write runs as one HTML file that needs no network.

    The page shows curves, graph, privacy and settings, and compares several runs.
    """
    with show_progress(err, "report", "reading") as progress:
        from topdp.views.pages.page_assets import expect_ours
        from topdp.views.pages.page_runs import runs_in
        from topdp.views.pages.report_page import write_report
        from topdp.views.pages.run_facts import run_facts

        report_file = file or (runs[0] if len(runs) == 1 else Path()) / "report.html"
        folders = runs_in(runs)
        expect_ours(report_file)  # before the work, so that an error comes at once
        facts = []
        for number, folder in enumerate(folders, 1):
            progress(f"reading run {number} of {len(folders)}")
            facts.append(run_facts(folder))
        progress("writing")
        write_report(report_file, facts)
    print_result(
        as_json,
        {"file": str(report_file), "runs": [str(folder.path) for folder in folders]},
        f"The report is {report_file}",
    )


def statement(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The folder of a run, or the state folder of your own agent."),
    ],
    manifest: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For an agent: the manifest of its ledger.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="The folder to write. Default: the run's folder; for an agent the current one.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the privacy statement of a run, in plain words.

    It states what the run guarantees, to whom, and what it does not guarantee: as YAML and as a page to
    print. A simulated run has one statement for all agents. In a federation each organisation makes a
    statement of its own part from its own ledger, which is verified and not changed. A damaged ledger is
    refused (exit code 4).
    """
    with show_progress(err, "statement", "reading"):
        from topdp.views.statement.run_statement import write_statement

        of_agent = (run / "ledger.sqlite").exists()
        content = _agent_statement(run, manifest) if of_agent else _run_statement(run, manifest)
        files = write_statement(content, folder or (Path() if of_agent else run))
    print_result(
        as_json,
        {"files": [str(file) for file in files], "statement": content},
        *content["summary"],
        f"The statement is {files[0]}, to print {files[1]}",
    )


def _run_statement(run: Path, manifest: Path | None) -> dict[str, Any]:
    from topdp.runs.run_folder import RunFolder
    from topdp.views.pages.run_facts import run_facts
    from topdp.views.statement.run_statement import statement as run_statement

    if manifest is not None:
        raise InputError(
            f"Expected an agent's state folder with --manifest, got {run}, which contains no ledger."
        )
    return run_statement(run_facts(RunFolder.open(run), max_seconds=0.0))


def _agent_statement(state: Path, manifest: Path | None) -> dict[str, Any]:
    from topdp.views.statement.agent_record import agent_record
    from topdp.views.statement.agent_statement import agent_statement

    if manifest is None:
        raise InputError(
            f"Expected --manifest FILE with the ledger of an agent in {state}, got none. The manifest states "
            "against whom the agent is protected."
        )
    return agent_statement(agent_record(state, manifest))
