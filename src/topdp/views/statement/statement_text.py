"""The sentences and fields that the statements of simulated runs and of agents in a federation share.

Names of fields in `deployment` are those of the registry of deployments of differential privacy
(https://registry.opendp.org; opendp/deployments-registry-data, deployments/*.yaml). Topics of `evaluation`
are those of NIST SP 800-226 (March 2025). Fields that only the people behind the data can fill in stay open.

**Guarantees.** Statements contain no seed: anybody who knows the seed of a simulated run can subtract its
noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topdp.privacy.answers import AnswerKind
from topdp.views.pages.plain_words import at_most

TO_FILL_IN = "to be filled in by the people responsible for the data"

SEVERAL_RUNS = "This is one run. Further runs on the same records add to it and are not counted here."
POST_PROCESSING = "Mixing and evaluating the released models costs no further privacy."

NOT_PROTECTED = {
    "model": "What the model teaches about everybody: a correct prediction from general knowledge is not a "
    "privacy breach here.",
    "tuning": "The choice of settings, features or a model by looking at private records.",
}


FALSE_ALARM_SHARES = (0.01, 0.05)


def answer_facts(
    kind: AnswerKind,
    colluders: int,
    status: str,
    epsilon: float | None,
    mu: float | None,
    powers: Sequence[float | None],
) -> dict[str, Any]:
    """Return the observer of an answer, its numbers, and what an attacker achieves.

    `powers`: at each of `FALSE_ALARM_SHARES`.
    """
    return {
        "against": kind.against(colluders),
        "is_a_guarantee": kind.proved and status == "finite",
        "status": status,
        "epsilon": epsilon,
        "mu": mu,
        "recognised_at_1_percent_false_alarms": powers[0],
        "recognised_at_5_percent_false_alarms": powers[1],
    }


def attacker_sentence(powers: Sequence[float]) -> str:
    one, five = map(at_most, powers)
    return (
        "In other words: an attacker with false alarms in 1 of 100 cases recognises a record that was used "
        f"in at most {one} of 100 cases; with false alarms in 5 of 100, in at most {five}. Guessing gives 1 "
        "and 5."
    )


def all_others_sentence(epsilon: str | None) -> str:
    outcome = "nothing is guaranteed" if epsilon is None else f"the same guarantee holds with ε = {epsilon}"
    return f"If all other agents pool everything they see, {outcome}."


def unproved_sentence(answer: str) -> str:
    return f"Anybody, by the answer `{answer}`: it is a description and may be wrong. Rely on the worst case."


def deployment(
    *,
    name: str,
    data_curators: str,
    description: str,
    adjacency: str,
    epsilon: float | None,
    delta: float,
    mu: float | None,
    data_domain: str,
    further_unprotected: Sequence[str] = (),
    loss: str,
    **parts: dict[str, Any],
) -> dict[str, Any]:
    """Return the fields of the registry. `loss`: whose ε it is; `parts`: the model, accounting and others."""
    removed = adjacency == "add-remove"
    return {
        "product": {
            "name": name,
            "data_curators": data_curators,
            "intended_use": TO_FILL_IN,
            "data_product_type": "Machine learning model",
            "data_product_region": TO_FILL_IN,
            "publication_date": TO_FILL_IN,
            "description": description,
        },
        "dp_flavor": {
            "name": "Approximate DP",
            "also": None if mu is None else "Gaussian DP",
            "input_metric": "symmetric distance: records added or removed" if removed else "changed records",
            "bound_on_input_distance": 1,
            "bounded_or_unbounded": "unbounded, with a public number of records" if removed else "bounded",
            "output_measure": "(ε, δ)",
            "bound_on_output_distance": {"epsilon": epsilon, "delta": delta},
            "data_domain": data_domain,
            "unprotected_quantities": [
                "how many records each agent holds",
                "who takes part, and who is linked to whom",
                "all settings, and every random choice of the protocol except the noise",
                *further_unprotected,
            ],
        },
        "privacy_loss": {
            "privacy_unit": "record-level",
            "privacy_unit_description": "One record of one agent. A person with several records is protected "
            "less: with k records at one agent μ is up to k times as large, and ε grows even more.",
            "privacy_parameters": {"epsilon": epsilon, "delta": delta, "mu": mu},
            "privacy_parameters_description": loss,
        },
        **parts,
    }


def trust_model(*actors: str, one_party: bool, releases: str) -> dict[str, Any]:
    if one_party:
        name, words = "Central", "One party holds all records and adds noise to what it learns from them."
    else:
        name, words = (
            "Decentralised",
            (
                "No server: every agent adds noise before anything leaves it, and exchanges models with its "
                "neighbours on a graph."
            ),
        )
    return {
        "model_name": name,
        "model_name_description": words,
        "actors": [*actors, "Recipients of the final models: need not be trusted."],
        "release_type": "Many releases",
        "release_type_description": f"{releases}, all of them counted together.",
        "data_source_type": "Static",
        "access_type": "Non-interactive",
    }


def implementation(
    *,
    clip: float,
    clipping: str,
    method: str,
    batches: str = "",
    calibration: dict[str, Any] | None = None,
    noise_source: str,
    floating_point: str,
    verification: str,
    tuning: str,
) -> dict[str, Any]:
    return {
        "mechanisms": f"Gaussian noise on gradients, each record's clipped to length {clip:g} ({clipping}); "
        f"method {method}{batches}.",
        **(calibration or {}),
        "noise_source": noise_source,
        "floating_point": floating_point,
        "verification": f"Open source. {verification} No outside party has certified it.",
        "pre_processing_eda_hyperparameter_tuning": f"Not counted.{tuning}",
        "justification": TO_FILL_IN,
    }


def evaluation(*, adjacency: str, one_party: bool, parameters: str, **topics: str) -> dict[str, str]:
    """Return the topics of NIST SP 800-226; `topics`: those that differ between the kinds of statements."""
    return {
        "parameters": f"ε, δ and μ are above{parameters}",
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
