"""Export the model of an agent from its ledger to a file, while the agent runs or afterwards.

Needs no manifest and no records: a start of the agent writes the type of the model to the state folder.

**Guarantees.** The file contains the agent's own estimate after the last release in its ledger. Guarantees
cover what was sent; to publish the file adds an observer of that row (docs/privacy.md, "Who might look").
"""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

from safetensors.torch import load

from topdp.agents.ledger.ledger import Ledger
from topdp.agents.runtime.agent_context import AgentContext
from topdp.base.files import UNREADABLE_FILE_ERRORS, write_atomically
from topdp.errors import InputError
from topdp.learning.models import FlatModel
from topdp.runs.config import parse_stored
from topdp.runs.named_model import named_model, named_task

MODEL_FACTS_FILE = "model.json"


def write_model_facts(folder: Path, context: AgentContext, classes: int | None) -> None:
    """Write the type of the model whose rows the ledger contains. It is public, as the manifest is."""
    config, part = context.manifest.config, context.part
    inputs, targets = context.gradients.inputs, context.gradients.targets
    facts = {
        "config": config.model_dump(mode="json", exclude_none=True),
        "inputs": list(inputs.shape[1:]),
        "input_type": str(inputs.dtype).removeprefix("torch."),
        "outputs": named_task(config).outputs(targets, classes),
        "rows": [part.reported, part.agent],
    }
    write_atomically(folder / MODEL_FACTS_FILE, json.dumps(facts) + "\n", mode=0o600)


def export_model(state: Path, file: Path, format: str | None = None) -> int:
    """Write the model after the last release to `file`. Return its round."""
    from topdp.runs.model_export import InputKind, format_of, write

    format_of(file, format)  # refuses a wrong format before anything is read
    with closing(Ledger(state, writable=False)) as ledger:
        stored = ledger.state()
    if stored is None:
        raise InputError(
            f"Expected a release in the ledger in {state}, there is none yet: nothing to export."
        )
    round, body = stored
    facts = _read_model_facts(state)
    rows = load(body)
    row = next((rows[str(number)] for number in facts["rows"] if str(number) in rows), None)
    if row is None:
        raise InputError(
            f"Expected row {' or '.join(map(str, facts['rows']))}, which holds the model, in the last "
            f"release of the ledger in {state}, got rows {', '.join(rows)}. {MODEL_FACTS_FILE} may "
            "be of another run."
        )
    inputs = InputKind(tuple(facts["inputs"]), str(facts["input_type"]))
    flat = FlatModel(
        named_model(parse_stored(facts["config"], MODEL_FACTS_FILE), inputs.shape, int(facts["outputs"]))
    )
    if row.shape != (flat.dimension,):
        raise InputError(
            f"Expected a row of {flat.dimension} numbers, as {state / MODEL_FACTS_FILE} says, got "
            f"{tuple(row.shape)}."
        )
    write(flat.load(row.to(flat.dtype)), file, format, inputs)  # rows may travel in a wider type
    return round


def _read_model_facts(state: Path) -> dict[str, Any]:
    try:
        facts = json.loads((state / MODEL_FACTS_FILE).read_text(encoding="utf-8"))
        if {"config", "inputs", "input_type", "outputs", "rows"} <= set(facts):
            return dict(facts)
    except UNREADABLE_FILE_ERRORS:
        pass
    raise InputError(
        f"Expected {MODEL_FACTS_FILE} in {state}, which describes the model in the ledger: it is missing "
        "or damaged. `topdp agent start` writes it again."
    )
