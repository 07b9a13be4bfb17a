"""What the registry of deployments of differential privacy accepts, and a check of a record against it.

The fields, types and values are facts of `schemas/deployments-schema.yaml` in
opendp/deployments-registry-data, as of 15 July 2026 (commit 3e9c812). Every object refuses other fields.
"""

from __future__ import annotations

from datetime import date
from typing import Any

TEXT, NUMBER, TEXTS, DATE = "text", "number", "texts", "date"
ANYTHING = "anything"

Fields = dict[str, Any]
"""The type of each field: a name above, a tuple of possible values, or further fields. A `!` is required."""

RECORD: Fields = {
    "url_slug!": TEXT,
    "status!": (
        "Converted", "Draft", "Pending", "Changes Required", "Approved", "Approved (Update Requested)",
        "Approved (Pending)",
    ),
    "tier!": (1, 2, 3),
    "deployment!": {
        "basic!": {
            "name!": TEXT,
            "data_curators!": TEXTS,
            "intended_use!": TEXT,
            "data_product_type!": (
                "Summary statistics", "Machine learning model", "Dataset", "Synthetic data",
                "Interactive API", "SQL queries",
            ),
            "data_product_region!": TEXT,
            "description!": TEXT,
            "publication_date!": DATE,
            "data_product_sector": (
                "Technology", "Healthcare", "Education", "Government", "Energy", "Finance",
            ),
        },
        "dp_variant": {
            "variant_name": ("Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"),
            "data_domain": TEXT,
            "unprotected_quantities": TEXT,
        },
        "privacy_loss": {
            "privacy_unit": TEXT,
            "privacy_unit_details": TEXT,
            "privacy_parameters": {"epsilon": NUMBER, "delta": (NUMBER, TEXT), "rho": NUMBER},
            "privacy_parameters_details": ANYTHING,
        },
        "deployment_model": {
            "model_name": ("Local", "Central", "Shuffle", "Federated", "Varies"),
            "model_name_details": TEXT,
            "actors": TEXT,
            "release_type": ("One release", "Many releases"),
            "release_type_details": TEXT,
            "data_source_type": ("Static", "Dynamic"),
            "data_source_type_details": ANYTHING,
            "access_type": ("Interactive", "Non-interactive"),
            "access_type_details": TEXT,
        },
        "accounting": {"post_processing": TEXT, "composition": TEXT},
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": TEXT,
            "mechanisms": TEXT,
            "justification": TEXT,
        },
        "administrative": {"sources": TEXT, "notes": TEXT, "registry_authors!": TEXTS},
    },
}  # fmt: skip


def faults(value: Any, wanted: Any = RECORD, path: str = "") -> list[str]:
    """Return what the registry would refuse in a record; nothing if it accepts the record."""
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            return [f"{path}: not an object"]
        types = {name.rstrip("!"): kind for name, kind in wanted.items()}
        missing = [name[:-1] for name in wanted if name.endswith("!") and name[:-1] not in value]
        found = [f"{path}/{name}: unknown" for name in value if name not in types]
        found += [f"{path}/{name}: missing" for name in missing]
        for name in value.keys() & types.keys():
            found += faults(value[name], types[name], f"{path}/{name}")
        return found
    return [] if _has_type(value, wanted) else [f"{path}: got {value!r}"]


def _has_type(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return any(value == one or (one in (TEXT, NUMBER) and _has_type(value, one)) for one in wanted)
    if wanted == DATE:
        try:
            return isinstance(value, str) and bool(date.fromisoformat(value))
        except ValueError:
            return False
    checks = {
        TEXT: isinstance(value, str),
        NUMBER: isinstance(value, int | float) and not isinstance(value, bool),
        TEXTS: isinstance(value, list) and bool(value) and all(isinstance(one, str) for one in value),
        ANYTHING: True,
    }
    return checks[wanted]
