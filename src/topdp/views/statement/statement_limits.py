"""What a guarantee does not say, and what has to be known to judge it: the honest half of a statement.

Sentences for people, chosen by the settings of a run. Topics of `evaluation` are those of NIST SP 800-226.
"""

from __future__ import annotations

from typing import Any

from topdp.privacy.answers import ANSWERS


def unprotected(facts: dict[str, Any]) -> list[str]:
    """What counts as public."""
    return [
        "how many records each agent holds",
        "who takes part, and who is linked to whom",
        "all settings, and every random choice of the protocol but the noise",
        "test records and their labels, where the model is evaluated on them",
        *(
            ["the data's schema: ranges, categories, fills"]
            if facts["settings"]["data"].get("schema")
            else []
        ),
    ]


def not_protected(facts: dict[str, Any]) -> list[str]:
    """What nobody should believe that this guarantee covers."""
    settings, agents = facts["settings"], facts["graph"]["agents"]
    colluders, kind = facts["guarantee"]["colluders"], ANSWERS[facts["guarantee"]["answer"]]
    said = [
        "That a person's organisation takes part, or how many records it has.",
        "What the model teaches about everybody: a correct prediction from general knowledge is no breach "
        "here.",
        "Several records of one person: ε is that of one record.",
        "Test records and their labels: accuracies are computed on them without noise.",
        "Choosing settings, features or a model by looking at private records.",
        "Further runs on the same records: each adds to this one.",
        "Timing, memory, logs, stolen machines, and the last digits of floating-point numbers.",
        "Wrong or hostile models: privacy says nothing about who spoils the training.",
        "Anything about real agents: in this simulated run one machine held all records and one seed all "
        "noise.",
    ]
    if agents > 1 and kind.counts_colluders:
        more = f"More than {colluders} agent{'s' if colluders > 1 else ''} putting together what they see"
        said.insert(0, f"{more}: then, up to all others, the worst case counts.")
    if not kind.proved:
        said.insert(
            0, f"Anybody, by the answer `{kind.key}`: it describes, and can be wrong. The worst case holds."
        )
    if settings["attack"]["name"] != "none":
        said.append("Hostile agents were part of this simulation: its accuracies are those under attack.")
    return said


def evaluation(facts: dict[str, Any]) -> dict[str, str]:
    """Topic by topic: what NIST SP 800-226 asks of whoever states a guarantee."""
    settings, agents = facts["settings"], facts["graph"]["agents"]
    metrics = facts["metrics"]
    if metrics is None:
        utility = "Not evaluated: there are no test records, or none were reached yet."
    else:
        name = metrics["names"][0]
        values = {part: metrics["values"][name][part][-1] for part in ("mean", "min", "max")}
        words = ", ".join(f"{part} {'undefined' if v is None else f'{v:.4g}'}" for part, v in values.items())
        utility = f"{name} after round {metrics['rounds'][-1]}, over agents: {words}."
    return {
        "parameters": "ε, δ and μ stand above, for the whole run and not for a round or a day.",
        "unit_of_privacy": "One record. Whether that is a person is decided by whoever prepared the data.",
        "neighbouring_data_sets": (
            "One record more or less (unbounded), the number of records being public."
            if facts["guarantee"]["adjacency"] == "add-remove"
            else "One record with other contents (bounded)."
        ),
        "trust_model": (
            "Nobody is trusted by all; each agent is trusted with its own records."
            if agents > 1
            else "One party is trusted with all records."
        ),
        "utility": utility,
        "bias": (
            "Noise and clipping cost small groups most. Accuracies for groups are not part of this "
            "statement; agents "
            f"differ as stated. Partition: {settings['data']['partition']}."
        ),
        "algorithm": "Gaussian noise on clipped gradients; the proof is in the documentation of topdp (How "
        "private is it?).",
        "random_numbers": "Seeded, and not cryptographic: right for a simulation, wrong for secrets.",
        "floating_point": "Ordinary floating-point noise; attacks on its last digits are not excluded.",
        "side_channels": "Timing and the machine itself are not covered.",
        "access_control_and_collection": (
            "How records were collected, stored and who may read them is outside of this statement."
        ),
        "privacy_budget": "For this run alone; nobody keeps account of further simulated runs.",
    }
