"""The sentences and fields that the statements of simulated runs and of agents in a federation share.

Names of fields in `deployment` are those of the registry of deployments of differential privacy
(https://registry.opendp.org; opendp/deployments-registry-data, deployments/*.yaml). Topics of `evaluation`
are those of NIST SP 800-226 (March 2025). Fields that only the people behind the data can fill in stay open.

**Guarantees.** Statements contain no seed: anybody who knows the seed of a simulated run can subtract its
noise.
"""

from __future__ import annotations

from typing import Any

from topdp.views.pages.plain_words import at_most

TO_FILL_IN = "to be filled in by the people responsible for the data"

NO_EXTERNAL_CERTIFICATE = "No outside party has certified it."
SEVERAL_RUNS = "This is one run. Further runs on the same records add to it and are not counted here."
POST_PROCESSING = "Mixing and evaluating the released models costs no further privacy."
ALL_OTHERS = "If all other agents pool everything they see"

NOT_PROTECTED = {
    "model": "What the model teaches about everybody: a correct prediction from general knowledge is not a "
    "privacy breach here.",
    "tuning": "The choice of settings, features or a model by looking at private records.",
}


def attacker_sentence(power_at_1_percent: float, power_at_5_percent: float) -> str:
    one, five = at_most(power_at_1_percent), at_most(power_at_5_percent)
    return (
        "In other words: an attacker with false alarms in 1 of 100 cases recognises a record that was used "
        f"in at most {one} of 100 cases; with false alarms in 5 of 100, in at most {five}. Guessing gives 1 "
        "and 5."
    )


def all_others_sentence(epsilon: str | None) -> str:
    outcome = "nothing is guaranteed" if epsilon is None else f"the same guarantee holds with ε = {epsilon}"
    return f"{ALL_OTHERS}, {outcome}."


def unproved_sentence(answer: str) -> str:
    return f"Anybody, by the answer `{answer}`: it is a description and may be wrong. Rely on the worst case."


def unprotected_quantities(*more: str) -> list[str]:
    """Return the quantities that count as public, followed by `more`."""
    return [
        "how many records each agent holds",
        "who takes part, and who is linked to whom",
        "all settings, and every random choice of the protocol except the noise",
        *more,
    ]


def product(*, name: str, data_curators: str, description: str) -> dict[str, Any]:
    return {
        "name": name,
        "data_curators": data_curators,
        "intended_use": TO_FILL_IN,
        "data_product_type": "Machine learning model",
        "data_product_region": TO_FILL_IN,
        "publication_date": TO_FILL_IN,
        "description": description,
    }


def dp_flavor(
    *,
    adjacency: str,
    epsilon: float | None,
    delta: float,
    gaussian: bool,
    data_domain: str,
    unprotected: list[str],
) -> dict[str, Any]:
    removed = adjacency == "add-remove"
    return {
        "name": "Approximate DP",
        "also": "Gaussian DP" if gaussian else None,
        "input_metric": "symmetric distance: records added or removed" if removed else "changed records",
        "bound_on_input_distance": 1,
        "bounded_or_unbounded": "unbounded, with a public number of records" if removed else "bounded",
        "output_measure": "(ε, δ)",
        "bound_on_output_distance": {"epsilon": epsilon, "delta": delta},
        "data_domain": data_domain,
        "unprotected_quantities": unprotected,
    }


def privacy_loss(*, epsilon: float | None, delta: float, mu: float | None, words: str) -> dict[str, Any]:
    return {
        "privacy_unit": "record-level",
        "privacy_unit_description": (
            "One record of one agent. A person with several records is protected less: with k records at one "
            "agent μ is up to k times as large, and ε grows even more."
        ),
        "privacy_parameters": {"epsilon": epsilon, "delta": delta, "mu": mu},
        "privacy_parameters_description": words,
    }


def trust_model(*, name: str, words: str, actors: list[str], releases: str) -> dict[str, Any]:
    return {
        "model_name": name,
        "model_name_description": words,
        "actors": [*actors, "Recipients of the final models: need not be trusted."],
        "release_type": "Many releases",
        "release_type_description": releases,
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


DECENTRALISED = (
    "No server: every agent adds noise before anything leaves it, and exchanges models with its neighbours "
    "on a graph."
)


def mechanism(clip: float, clipping: str, method: str) -> str:
    return (
        f"Gaussian noise on gradients, each record's clipped to length {clip:g} ({clipping}); method {method}"
    )


def evaluation(*, adjacency: str, one_party: bool, parameters: str, **topics: str) -> dict[str, str]:
    """Return the topics of NIST SP 800-226; `topics`: those that differ between the kinds of statements."""
    return {
        "parameters": parameters,
        "unit_of_privacy": "One record. Whether a record is a person depends on how the data were prepared.",
        "neighbouring_data_sets": (
            "One record more or less (unbounded); the number of records is public."
            if adjacency == "add-remove"
            else "One record with other contents (bounded)."
        ),
        "trust_model": (
            "One party is trusted with all records."
            if one_party
            else "Nobody is trusted by all; each agent is trusted with its own records."
        ),
        **topics,
        "algorithm": "Gaussian noise on clipped gradients; the documentation of topdp contains the proof "
        "(How private is it?).",
        "side_channels": "Timing and the machine itself are not covered.",
        "access_control_and_collection": "How records were collected and stored, and who may read them, is "
        "outside the scope of this statement.",
    }
