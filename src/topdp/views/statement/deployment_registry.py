"""The fields of the registry of deployments of differential privacy, by their names there.

https://registry.opendp.org; the names are those of opendp/deployments-registry-data, deployments/*.yaml.
Filled from the facts of one run; what only the people behind the data know is left open, and said.

**Guarantees.** Numbers are those of the promise (`promises.py`). No seed is named: who knows it can subtract
the noise of a simulated run.
"""

from __future__ import annotations

from typing import Any

from topdp.views.statement import statement_limits
from topdp.views.statement.statement_promises import against, promised_epsilon, relied_on

TO_FILL_IN = "to be filled in by the people responsible for the data"


def deployment(facts: dict[str, Any]) -> dict[str, Any]:
    """All of them."""
    return {
        "product": _product(facts),
        "dp_flavor": _flavor(facts),
        "privacy_loss": _privacy_loss(facts),
        "model": _model(facts),
        "accounting": _accounting(facts),
        "implementation": _implementation(facts),
    }


def _product(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": facts["name"],
        "data_curators": TO_FILL_IN,
        "intended_use": TO_FILL_IN,
        "data_product_type": "Machine learning model",
        "data_product_region": TO_FILL_IN,
        "publication_date": TO_FILL_IN,
        "description": (
            f"A model ({facts['model']}) of {facts['data']['name']}, trained by {facts['graph']['agents']} "
            "agents "
            f"with the method {facts['method']} in {facts['rounds']} rounds."
        ),
    }


def _flavor(facts: dict[str, Any]) -> dict[str, Any]:
    guarantee = facts["guarantee"]
    removed = guarantee["adjacency"] == "add-remove"
    records, mu = facts["data"]["records"], facts["privacy"]["mu"][relied_on(facts).key]
    return {
        "name": "Approximate DP",
        "also": "Gaussian DP" if mu is not None else None,
        "input_metric": "symmetric distance: records added or removed" if removed else "changed records",
        "bound_on_input_distance": 1,
        "bounded_or_unbounded": "unbounded, with a public number of records" if removed else "bounded",
        "output_measure": "(ε, δ)",
        "bound_on_output_distance": {"epsilon": promised_epsilon(facts), "delta": guarantee["delta"]},
        "data_domain": f"{records['total']} records of {facts['data']['name']}, each held by one agent "
        f"({records['min']} to {records['max']} at each)",
        "unprotected_quantities": statement_limits.unprotected(facts),
    }


def private_unit() -> dict[str, str]:
    """What is protected, and what of that is not."""
    return {
        "privacy_unit": "record-level",
        "privacy_unit_description": (
            "One record of one agent. Somebody with several records is protected less: with k records at one "
            "agent μ is up to k times as large, and ε more than that."
        ),
    }


def _privacy_loss(facts: dict[str, Any]) -> dict[str, Any]:
    privacy, answer = facts["privacy"], relied_on(facts).key
    return {
        **private_unit(),
        "privacy_parameters": {
            "epsilon": promised_epsilon(facts),
            "delta": privacy["delta"],
            "mu": privacy["mu"][answer],
        },
        "privacy_parameters_description": (
            f"The largest over agents, against {against(facts)}. Values of every agent are in "
            "privacy.json of the run."
        ),
    }


def _model(facts: dict[str, Any]) -> dict[str, Any]:
    colluders = facts["guarantee"]["colluders"]
    if facts["graph"]["agents"] == 1:
        name = "Central"
        words = "One party holds all records and adds noise to what it learns from them."
        actors = ["The one party: is trusted with all records."]
    else:
        name = "Decentralised"
        words = (
            "No server: every agent adds noise before anything leaves it, and exchanges models with its "
            "neighbours on a graph."
        )
        actors = [
            "Agents: each clips and adds noise itself, and is trusted with its own records alone.",
            f"Other agents: follow the protocol, may keep and study all they see; {colluders} may pool it.",
        ]
    return {
        "model_name": name,
        "model_name_description": words,
        "actors": [*actors, "Whoever receives the final models: needs no trust."],
        "release_type": "Many releases",
        "release_type_description": f"{facts['releases']} releases, all of them counted together.",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def _accounting(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "composition": (
            f"All {facts['releases']} releases together, with every row that the observer reads, by the "
            "plan that was "
            "executed. Gaussian noise: μ is bounded and ε follows from it exactly; samples by privacy loss "
            "distributions (dp-accounting). Rounding goes to the private side."
        ),
        "post_processing": "Mixing and evaluating the released models costs nothing further.",
        "several_runs": (
            "This is one run. Further runs on the same records add to it, and are not counted here."
        ),
        "assumptions": facts["privacy"]["assumptions"],
        "warnings": facts["privacy"].get("warnings", []),
    }


def _implementation(facts: dict[str, Any]) -> dict[str, Any]:
    settings, privacy = facts["settings"], facts["privacy"]
    batches = ", ".join(
        one["kind"] if one["size"] is None else f"{one['kind']} of {one['size']}"
        for one in privacy["batches"]
    )
    return {
        "mechanisms": (
            f"Gaussian noise on gradients clipped for each record to length {privacy['clip']:g} "
            f"({settings['privacy']['clipping']}), method {facts['method']}; a record enters {batches} "
            "batches."
        ),
        "sensitivity": {"least": min(privacy["sensitivity"]), "largest": max(privacy["sensitivity"])},
        "noise_calibration": (
            f"before the first round, to ε = {_budget(facts)} under {privacy['guarantee']}"
            if privacy["guarantee"]
            else "none: the noise was given"
        ),
        "noise_source": (
            "A simulated run draws its noise from a seeded generator that is not cryptographic: whoever "
            "knows the seed "
            "can subtract all of it. The run folder holds the seed; real agents take noise from the "
            "operating system."
        ),
        "floating_point": (
            "Noise and sums are floating-point numbers; the account is of real numbers. That the last "
            "digits betray a "
            "value (Mironov 2012) is not excluded, and not counted."
        ),
        "verification": (
            "Open source. The accountants are tested against dense algebra, dp-accounting and attacks; "
            "`topdp audit` attacks a run with canaries. No outside party has certified it."
        ),
        "pre_processing_eda_hyperparameter_tuning": (
            "Not counted. Settings, features and models chosen by looking at private records cost privacy "
            "that is "
            "not in ε."
        ),
        "justification": TO_FILL_IN,
    }


def _budget(facts: dict[str, Any]) -> str:
    budget = facts["guarantee"]["epsilon"]
    if not isinstance(budget, list):
        return f"{budget:g}"
    return f"{min(budget):g} to {max(budget):g}, by agent"
