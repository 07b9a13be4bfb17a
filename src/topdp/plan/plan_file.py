"""Files of plans: .npz archives with all arrays of a plan."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from topdp.base.files import UNREADABLE_FILE_ERRORS, read_arrays
from topdp.errors import InputError
from topdp.plan.adaptive_steps import ADAPTIVE_OPTIMISERS
from topdp.plan.plan import ADAPTIVE_RATE, PerRound, Plan, PlanError, arrays_of
from topdp.plan.robust_rules import Robust

PLAN_FORMAT = 1
# Plans with robust rules or rounded rows have separate formats. Versions of topdp that lack these features
# then refuse such plans, and do not read them as linear plans.
ROBUST_PLAN_FORMAT = 2
ROUNDED_PLAN_FORMAT = 3


def save(plan: Plan, path: Path) -> None:
    """Write the plan to `path` as one .npz file, which `load` reads.

    >>> import numpy as np
    >>> from pathlib import Path
    >>> import tempfile, topdp
    >>> schedule = topdp.plan.Schedule(rate=np.full(2, 0.5), noise=np.full(2, 0.5))
    >>> ring = topdp.topology.ring(3)
    >>> plan = topdp.protocols.PlainSynchronous(0.5).plan(ring, schedule, np.ones(3), seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(plan, Path(folder) / "plan.npz")
    ...     load(Path(folder) / "plan.npz").digest() == plan.digest()
    True
    """
    meta: dict[str, Any] = {"format": PLAN_FORMAT, "agents": plan.agents, "protocol": plan.protocol}
    meta["pruned"] = plan.pruned
    if plan.robust is not None:
        meta |= {"format": ROBUST_PLAN_FORMAT, "robust": asdict(plan.robust)}
    if plan.rounded is not None:
        meta |= {"format": ROUNDED_PLAN_FORMAT, "rounded": plan.rounded}
    with path.open("wb") as file:
        np.savez_compressed(file, meta=np.array(json.dumps(meta)), **arrays_of(plan))  # type: ignore[arg-type]


def load(path: Path) -> Plan:
    """Return the plan in the file `path`; raise PlanError unless `save` wrote the file completely.

    >>> from pathlib import Path
    >>> load(Path("nowhere.npz"))
    Traceback (most recent call last):
        ...
    topdp.plan.plan.PlanError: Expected a plan written by topdp in nowhere.npz, but it cannot be read: ...
    """
    try:
        arrays = read_arrays(path)
        meta = json.loads(str(arrays.pop("meta")))
        version = meta["format"]
        values: dict[str, Any] = {"agents": int(meta["agents"]), "protocol": str(meta["protocol"])}
        values["pruned"] = bool(meta["pruned"])
    except UNREADABLE_FILE_ERRORS as error:
        raise PlanError(
            f"Expected a plan written by topdp in {path}, but it cannot be read: {error}"
        ) from error
    expected = ROUNDED_PLAN_FORMAT if "rounded" in meta else PLAN_FORMAT
    expected = ROBUST_PLAN_FORMAT if "robust" in meta else expected
    if version != expected:
        raise PlanError(
            f"Expected plan format {expected} in {path}, got {version}. Use the topdp that wrote it."
        )
    try:
        if "rounded" in meta:
            values["rounded"] = str(meta["rounded"])
        if "robust" in meta:
            values["robust"] = Robust(**meta["robust"])
        for field in fields(Plan):
            if field.name in arrays:
                values[field.name] = arrays.pop(field.name)
            elif f"{field.name}.values" in arrays:
                parts = arrays.pop(f"{field.name}.values"), arrays.pop(f"{field.name}.which")
                values[field.name] = PerRound(*parts)
        for steps in ADAPTIVE_OPTIMISERS.values():
            if steps.stored_as in arrays:
                rate, settings = arrays.pop(ADAPTIVE_RATE), arrays.pop(steps.stored_as)
                names = [field.name for field in fields(steps) if field.name != "rate"]
                values["adaptive"] = steps(rate=rate, **dict(zip(names, settings.tolist(), strict=True)))
        if arrays:
            raise PlanError(
                f"Expected only arrays that this version supports in {path}, got {', '.join(arrays)}. "
                "Use the topdp version that wrote it."
            )
        return Plan(**values)
    except InputError:
        raise
    except UNREADABLE_FILE_ERRORS as error:
        raise PlanError(f"Expected a complete plan in {path}, got a damaged file: {error}") from error
