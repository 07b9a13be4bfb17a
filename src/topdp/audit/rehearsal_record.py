"""Files of a rehearsal with real agents: the canaries, and what each agent records round by round.

All agents get one file with the canaries. The audited agent puts them in place of some of its records. Every
agent records the rows that it makes, the rows that it receives, its gradient without canaries, and the draws
that it shares, all of them at the canaries' coordinates only. An audit reads its rounds from the recordings
of all agents. `agents/development` writes the recordings.

**Sensitive**: recordings contain gradients without noise, and the file of canaries contains their coins.
Rehearse on public data only.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from topdp.audit.audit_observer import Observer
from topdp.audit.canaries import AuditError, Canaries
from topdp.audit.canary_scores import ObservedRound
from topdp.base.array_types import Floats
from topdp.base.files import UNREADABLE_FILE_ERRORS, make_folder, read_arrays, write_atomically

CANARIES_FILE = "canaries.npz"
RECORDING_FOLDER = "recording"


def rehearsal_folder(path: Path) -> Path | None:
    """Return the folder of a rehearsal: `path`, or the folder `agents` in it; None if neither."""
    return next((folder for folder in (path, path / "agents") if (folder / CANARIES_FILE).is_file()), None)


@dataclass(frozen=True, eq=False)
class RehearsalCanaries:
    """Canaries for a rehearsal, their signs, and the plan they belong to."""

    canaries: Canaries
    signs: Floats
    plan: str  # the digest of the plan
    seed: int

    def save(self, path: Path) -> None:
        arrays = {field.name: np.asarray(getattr(self.canaries, field.name)) for field in fields(Canaries)}
        own = {"signs": self.signs, "plan": np.array(self.plan), "seed": np.array(self.seed)}
        _write(path, **arrays, **own)

    @classmethod
    def load(cls, path: Path) -> RehearsalCanaries:
        arrays = _read(path, "the canaries of an audit")
        try:
            parts: dict[str, Any] = {field.name: arrays[field.name] for field in fields(Canaries)}
            canaries = Canaries(**(parts | {"owner": int(arrays["owner"])}))
            return cls(canaries, arrays["signs"], str(arrays["plan"]), int(arrays["seed"]))
        except (KeyError, ValueError) as error:
            raise AuditError(f"Expected canaries of an audit in {path}, could not read: {error}.") from error


@dataclass(frozen=True)
class AgentRecording:
    """The recording of one agent in a rehearsal: one file for its initial row, and one file per round."""

    folder: Path

    def keep_start(self, start: Floats) -> None:
        make_folder(self.folder)
        _write(self.folder / "start.npz", start=start)

    def keep(
        self,
        round: int,
        made: Mapping[int, Floats],
        received: Mapping[int, Floats],
        gradient: Floats | None,
        shared: Mapping[int, Floats] | None = None,
        added: Floats | None = None,
    ) -> None:
        """Record the rows made in `round` and the rows received of the previous round, by row number.

        `gradient`: the agent's mean gradient without canaries; None if its records did not enter the round.
        `shared`: the draws of `round` that another agent knows too, by draw number. `added`: what the
        canaries added to the gradient.
        """
        arrays = {f"made-{row}": values for row, values in made.items()}
        arrays |= {f"received-{row}": values for row, values in received.items()}
        arrays |= {f"draw-{number}": values for number, values in (shared or {}).items()}
        means = {"gradient": gradient, "added": added}
        _write(
            self._file(round), **arrays, **{name: mean for name, mean in means.items() if mean is not None}
        )

    @property
    def start(self) -> Floats:
        return np.asarray(_read(self.folder / "start.npz", "an agent's recording")["start"])

    def made(self, round: int) -> dict[int, Floats]:
        return self._rows(round, "made-")

    def received(self, round: int) -> dict[int, Floats]:
        """Return the rows of `round` that the agent received and used in the next round."""
        return self._rows(round + 1, "received-")

    def shared(self, round: int) -> dict[int, Floats]:
        """Return the draws of `round` that another agent knows too."""
        return self._rows(round, "draw-")

    def gradient(self, round: int) -> Floats | None:
        return _read(self._file(round), "an agent's recording").get("gradient")

    def added(self, round: int) -> Floats | None:
        """Return what the canaries added to the gradient; None if there are none in the round."""
        return _read(self._file(round), "an agent's recording").get("added")

    def _rows(self, round: int, prefix: str) -> dict[int, Floats]:
        arrays = _read(self._file(round), "an agent's recording")
        return {int(key.removeprefix(prefix)): arrays[key] for key in arrays if key.startswith(prefix)}

    def _file(self, round: int) -> Path:
        return self.folder / f"round-{round:06}.npz"


def recorded_rounds(
    recordings: Sequence[AgentRecording], observer: Observer, canaries: Canaries
) -> Iterator[ObservedRound]:
    """Yield the rounds of a rehearsal from one recording per agent.

    Rows that the observer received come from its own recording. All other rows, such as public rows and those
    of the last round, which nobody uses, come from the recordings of the agents that made them.

    Raise AuditError if a recording is incomplete, or if the rehearsal did not follow the plan.
    """
    plan, shape = observer.plan, (observer.plan.rows, len(canaries))
    for r in range(plan.releases):
        this, values = plan[r], np.full(shape, np.nan)
        for recording in recordings:
            for row, value in recording.made(r).items():
                values[row] = value
        for j in observer.members if r + 1 < plan.releases else ():
            received, expected = recordings[j].received(r), (this.readers == j).any(axis=1) & this.exists
            if missing_rows := set(np.flatnonzero(expected).tolist()) - set(received):
                raise AuditError(
                    f"Expected a rehearsal that follows the plan, but agent {j} continued without row "
                    f"{min(missing_rows)} of round {r}. Rehearse again, with all agents until the end."
                )
            for row, value in received.items():
                values[row] = value
        if len(missing := np.flatnonzero(np.isnan(values).any(axis=1) & this.exists)):
            missing_row = f"row {missing[0]} of agent {plan.owner[missing[0]]}"
            raise AuditError(f"Expected all rows of round {r} in the recordings, got none for {missing_row}.")
        gradients = np.zeros((plan.agents, len(canaries)))
        for i, recording in enumerate(recordings):
            gradient = recording.gradient(r)
            if gradient is None and (this.step[(plan.owner == i) & this.exists] != 0).any():
                raise AuditError(
                    f"Expected a rehearsal to the end of the plan, but the budget of agent {i} was used up "
                    f"before round {r}. Rehearse again with a larger budget or fewer rounds."
                )
            gradients[i] = 0.0 if gradient is None else gradient
        draws = {number: draw for j in observer.members for number, draw in recordings[j].shared(r).items()}
        added = recordings[canaries.owner].added(r)
        yield ObservedRound(
            rows=values,
            gradients=gradients,
            draws=draws.__getitem__,
            added=np.zeros(len(canaries)) if added is None else added,
        )


def _write(path: Path, **arrays: np.ndarray) -> None:
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]  # the stubs take array names for options
    write_atomically(path, content.getvalue(), mode=0o600)


def _read(path: Path, what: str) -> dict[str, np.ndarray]:
    try:
        return read_arrays(path)
    except UNREADABLE_FILE_ERRORS as error:
        raise AuditError(f"Expected {what}, but could not read {path}: {error}.") from error
