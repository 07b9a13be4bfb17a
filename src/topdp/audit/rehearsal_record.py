"""A rehearsal of real agents: the canaries as a file, and what each agent writes down, round by round.

Agents are given one file with the canaries. The audited agent puts them in the place of records; every agent
writes down, at the canaries' coordinates only, the rows it makes, the rows it received, its gradient without
canaries, and the draws that it shares. From all their notes follow the rounds of an audit. Not for the agents
themselves: `agents/development/agent_rehearsal.py`.

**Sensitive**: gradients leave the agent unnoised in its notes, and the file of canaries holds their coins.
Rehearse on data that all may see.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from topdp.audit.audit_observer import Observer
from topdp.audit.canaries import AuditError, Canaries
from topdp.audit.canary_scores import Seen
from topdp.base.array_types import Bools, Floats
from topdp.base.files import UNREADABLE_FILE_ERRORS, make_folder, write_atomically

CANARIES = "canaries.npz"
NOTES = "recording"


def recorded_in(path: Path) -> Path | None:
    """The folder of a rehearsal, where `path` is one or is the run of a demonstration."""
    return next((folder for folder in (path, path / "agents") if (folder / CANARIES).is_file()), None)


@dataclass(frozen=True, eq=False)
class Planted:
    """Canaries for a rehearsal, how they push, and of which plan."""

    canaries: Canaries
    signs: Floats
    plan: str  # digest
    seed: int

    def save(self, path: Path) -> None:
        one = self.canaries
        _write(
            path,
            owner=np.array(one.owner),
            records=one.records,
            coordinates=one.coordinates,
            column=one.column,
            push=one.push,
            signs=self.signs,
            plan=np.array(self.plan),
            seed=np.array(self.seed),
        )

    @classmethod
    def load(cls, path: Path) -> Planted:
        found = _read(path, "the canaries of an audit")
        try:
            canaries = Canaries(
                int(found["owner"]), found["records"], found["coordinates"], found["column"], found["push"]
            )
            return cls(canaries, found["signs"], str(found["plan"]), int(found["seed"]))
        except (KeyError, ValueError) as error:
            raise AuditError(f"Expected the canaries of an audit in {path}: {error} is missing.") from error


@dataclass(frozen=True)
class Notes:
    """What one agent wrote down."""

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
    ) -> None:
        """Rows by their numbers: those of `round`, and those of the round before that came in.

        `shared`: the draws of `round` that another agent knows too, by their numbers.
        """
        named = {f"made-{row}": values for row, values in made.items()}
        named |= {f"received-{row}": values for row, values in received.items()}
        named |= {f"draw-{number}": values for number, values in (shared or {}).items()}
        _write(self._file(round), **named, **({} if gradient is None else {"gradient": gradient}))

    @property
    def start(self) -> Floats:
        return np.asarray(_read(self.folder / "start.npz", "what an agent recorded")["start"])

    def made(self, round: int) -> dict[int, Floats]:
        return self._rows(round, "made-")

    def received(self, round: int) -> dict[int, Floats]:
        """The rows of `round` that came in: used in the next one."""
        return self._rows(round + 1, "received-")

    def shared(self, round: int) -> dict[int, Floats]:
        """The draws of `round` that another agent knows too."""
        return self._rows(round, "draw-")

    def gradient(self, round: int) -> Floats | None:
        return _read(self._file(round), "what an agent recorded").get("gradient")

    def _rows(self, round: int, kind: str) -> dict[int, Floats]:
        found = _read(self._file(round), "what an agent recorded")
        return {int(key.removeprefix(kind)): found[key] for key in found if key.startswith(kind)}

    def _file(self, round: int) -> Path:
        return self.folder / f"round-{round:06}.npz"


def rounds(notes: Sequence[Notes], observer: Observer, canaries: Canaries) -> Iterator[Seen]:
    """The rounds of a rehearsal, one of `notes` for each agent.

    What the observer received is taken from its own notes; public rows, and those of the last round, which
    enter no more, from the notes of who made them.
    """
    plan, shape = observer.plan, (observer.plan.rows, len(canaries))
    for r in range(plan.releases):
        this, values = plan[r], np.full(shape, np.nan)
        for each in notes:
            for row, value in each.made(r).items():
                values[row] = value
        for j in observer.members if r + 1 < plan.releases else ():
            came, expected = notes[j].received(r), (this.readers == j).any(axis=1) & this.exists
            _expect_all(came, expected, j, r)
            for row, value in came.items():
                values[row] = value
        if np.isnan(values[this.exists]).any():
            raise AuditError(f"Expected every row of round {r} in the recordings, some are missing.")
        gradients = np.zeros((plan.agents, len(canaries)))
        for i, each in enumerate(notes):
            found = each.gradient(r)
            if found is None and (this.step[(plan.owner == i) & this.exists] != 0).any():
                raise AuditError(
                    f"Expected a rehearsal to the end of the plan, but agent {i}'s data did not enter round "
                    f"{r}: its budget was used up."
                )
            gradients[i] = 0.0 if found is None else found
        known = {number: draw for j in observer.members for number, draw in notes[j].shared(r).items()}
        yield Seen(values, gradients, known.__getitem__)


def _expect_all(came: Mapping[int, Floats], expected: Bools, agent: int, round: int) -> None:
    missing = set(np.flatnonzero(expected).tolist()) - set(came)
    if missing:
        raise AuditError(
            f"Agent {agent} went on without row {min(missing)} of round {round}, which the plan gives it: an "
            "audit needs a run by the plan."
        )


def _write(path: Path, **arrays: np.ndarray) -> None:
    content = io.BytesIO()
    np.savez(content, **arrays)  # type: ignore[arg-type]  # its stubs take a name for an option
    write_atomically(path, content.getvalue(), mode=0o600)


def _read(path: Path, what: str) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as found:
            return dict(found)
    except UNREADABLE_FILE_ERRORS as error:
        raise AuditError(f"Expected {what}, could not read {path}: {error}.") from error
