"""`topdp agent ...` and `topdp federation ...`: arguments in, tables and exit codes out.

Nothing heavy is imported before a command is called, so that `topdp --help` needs neither torch nor gRPC.
"""

from __future__ import annotations

import typer

from topdp.cli import (
    agent_commands,
    budget_commands,
    federation_commands,
    ledger_commands,
    member_commands,
    operator_commands,
)


def _group(help: str) -> typer.Typer:
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)


agent_app = _group("One agent on its own machine.")
ledger_app = _group("What an agent has spent.")
federation_app = _group("Several agents: the manifest, and a demonstration on this machine.")
budget_app = _group("What all runs on the same records have cost together, over all federations.")
model_app = _group("The model of an agent.")
quarantine_app = _group("Whom an agent no longer believes.")
agent_app.add_typer(ledger_app, name="ledger")
agent_app.add_typer(budget_app, name="budget")
agent_app.add_typer(model_app, name="model")
agent_app.add_typer(quarantine_app, name="quarantine")

agent_app.command("init")(agent_commands.init)
agent_app.command("start")(agent_commands.start)
agent_app.command("status")(operator_commands.status)
agent_app.command("pause")(operator_commands.pause)
agent_app.command("resume")(operator_commands.resume)
agent_app.command("stop")(operator_commands.stop)
model_app.command("export")(operator_commands.export_model)
quarantine_app.command("list")(operator_commands.list_quarantined)
quarantine_app.command("lift")(operator_commands.lift_quarantine)
agent_app.command("renew")(member_commands.renew)
agent_app.command("sign")(member_commands.sign)
ledger_app.command("show")(ledger_commands.show_charges)
ledger_app.command("verify")(ledger_commands.verify_books)
budget_app.command("show")(budget_commands.show_site)
budget_app.command("set")(budget_commands.set_limit)
budget_app.command("close")(budget_commands.close_run)
federation_app.command("create")(federation_commands.create)
federation_app.command("amend")(member_commands.amend)
federation_app.command("canaries")(federation_commands.canaries)
federation_app.command("demo")(federation_commands.demo)
