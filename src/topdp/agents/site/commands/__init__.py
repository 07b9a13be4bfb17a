"""`topdp agent ...` and `topdp federation ...`: arguments in, tables and exit codes out.

Nothing heavy is imported before a command is called, so that `topdp --help` needs neither torch nor gRPC.
"""

from __future__ import annotations

import typer

from topdp.agents.site.commands import agent, books, federation, ledger, members, operating


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

agent_app.command("init")(agent.init)
agent_app.command("start")(agent.start)
agent_app.command("status")(operating.status)
agent_app.command("pause")(operating.pause)
agent_app.command("resume")(operating.resume)
agent_app.command("stop")(operating.stop)
model_app.command("export")(operating.export_model)
quarantine_app.command("list")(operating.list_quarantined)
quarantine_app.command("lift")(operating.lift_quarantine)
agent_app.command("renew")(members.renew)
agent_app.command("sign")(members.sign)
ledger_app.command("show")(ledger.show_charges)
ledger_app.command("verify")(ledger.verify_books)
budget_app.command("show")(books.show_site)
budget_app.command("set")(books.set_limit)
budget_app.command("close")(books.close_run)
federation_app.command("create")(federation.create)
federation_app.command("amend")(members.amend)
federation_app.command("canaries")(federation.canaries)
federation_app.command("demo")(federation.demo)
