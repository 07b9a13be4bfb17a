"""CUDA replay: executes several rounds of an engine by replaying recordings, and checks the recordings.

Replays number 1, 2, 8, 64, 512, ... of each recording are compared with the round that the engine makes. If a
recording cannot handle a round, because an agent diverged or a gradient overflows, the engine makes the
rounds again from the state before them. `cuda_program.py` defines the recorded operations, `engine.py` the
rounds.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import final

import numpy as np
import torch
from torch import Tensor

from topdp.learning.gradients import DivergedError
from topdp.learning.gradients.gradient_checks import FailureFlags
from topdp.plan import Capability, unsupported
from topdp.plan.batches import Full
from topdp.simulator.cuda_graphs import CudaGraphs
from topdp.simulator.cuda_program import RoundProgram
from topdp.simulator.engine import Engine, WrongReplayError
from topdp.simulator.round_tables import RoundChunk, RoundTables
from topdp.simulator.row_mixing import RowWork
from topdp.simulator.row_mixing_cuda import CudaMixer
from topdp.simulator.simulation import SimulationWrapper, State

# (warm-up, function) -> replay: records the function; a call of the result repeats it.
Record = Callable[[Callable[[], None], Callable[[], None]], Callable[[], None]]

# The environment variable that switches replay off, unless it is empty or 0.
EAGER_VARIABLE = "TOPDP_EAGER"

# The largest distance between mean gradients that rounding can cause, relative to their norm. If matrix
# products are rounded to 10 bits, ten times as much is allowed.
GRADIENT_TOLERANCE = 1e-3

# The same, relative to the clip, which bounds terms that may have cancelled.
CLIP_TOLERANCE = 1e-6

# The number of replays that may be repeated because norms overflowed, before CUDA replay is switched off.
MAX_OVERFLOWS = 3


class _MismatchError(Exception):
    """An error for a replay that differs from the round that the engine makes."""


@final
class CudaReplay(SimulationWrapper):
    """A simulation that advances `engine` by replays if they are possible and verified, and otherwise by
    `Engine.advance`.

    **Guarantees.** Rows are those that `Engine.advance` makes, up to rounding of sums of gradients. Draws are
    those of the round; whenever a replay is compared with the engine, they must be identical to the last bit.
    If a call fails, the state that was passed in is intact. After an interrupt, `holds` returns False for a
    state whose rows were damaged.
    """

    def __init__(self, engine: Engine, record: Record | None = None) -> None:
        super().__init__(engine)
        self._engine = engine
        self._record = record
        self._program: RoundProgram | None = None
        self._chunk: RoundChunk | None = None
        self._replays: dict[tuple[int, bool], Callable[[], None]] = {}
        self._count: dict[tuple[int, bool], int] = {}
        self._replay_from = 0  # the engine makes all earlier releases
        self._overflows = 0
        self._blanks = False
        # The reason why the engine makes every round; None while rounds are replayed.
        self.reason = supports(engine, record is not None)

    def advance(self, state: State, at_most: int = 1) -> State:
        if self.reason is not None or state.releases < self._replay_from:
            return self._engine.advance(state)
        try:
            advanced = self._replay(state, max(1, at_most))
        except (DivergedError, WrongReplayError):
            raise
        except _MismatchError as error:
            self._give_up(str(error))
        except Exception as error:  # errors of a recording have many types; the engine repeats other errors
            first = error.__context__ or error  # an aborted recording raises a second error at its end
            self._give_up(f"{type(first).__name__}: {str(first).partition(chr(10))[0]}")
        else:
            if advanced is not None:
                return advanced
        return self._engine.advance(state)

    def _replay(self, state: State, at_most: int) -> State | None:
        """Return the state after the replayed releases; None if none was made and `state` is intact."""
        program, tables = self._ready()
        r = state.releases
        if self._chunk is None or r not in self._chunk.rounds:
            self._chunk = None  # no chunk is valid until the next one is completely loaded
            chunk = tables.chunk(r // tables.length)
            program.load(chunk)
            self._chunk = chunk
        count = self._chunk.servable(r, at_most)
        if count == 0:
            return None
        program.begin(state, self._chunk)
        try:
            for round in range(r, r + count):
                if not self._make_round(program, round):
                    program.put_back(state)
                    return None
            tables.prepare(r // tables.length + 1)
            finite_rows, finite_examples = program.watch.read()
        except BaseException:
            program.put_back(state)
            raise
        if finite_rows and finite_examples:
            return program.end(state, count)
        program.put_back(state)
        self._replay_from = r + count
        if not finite_examples:  # from now on, leave out such gradients in every round, as the engine does
            self._blanks = True
            self._forget()
        else:
            self._overflows += 1
            if self._overflows == MAX_OVERFLOWS:
                self.reason = "norms of rows overflow"
                self._forget()
        return None

    def _make_round(self, program: RoundProgram, round: int) -> bool:
        """Make one round; return False, without making a row, if the model cannot be recorded."""
        engine = self._engine
        kind = (round % 2, self._carries[round])
        if kind not in self._replays and not self._try_record(program, kind, round):
            return False
        self._count[kind] += 1
        number = self._count[kind]
        if not _is_compared(number):
            self._replays[kind]()
            return True
        before = engine.buffers.copy_of(program.buffers[1 - kind[0]][: len(engine.layout.made(round - 1))])
        self._replays[kind]()
        try:
            self._compare(program, kind[1], State(round, before))
        except _MismatchError as error:
            if not all(program.watch.read()):  # the caller makes all rounds since `begin` again
                return True
            if number > 2:
                raise WrongReplayError(
                    f"Expected round {round} as the engine makes it, but its recording, which was correct "
                    f"before, differs: {error}. Earlier results of this run may be wrong. Do not use them, "
                    f"do not resume the run, and report this. Start again with {EAGER_VARIABLE}=1."
                ) from error
            raise
        return True

    def _try_record(self, program: RoundProgram, kind: tuple[int, bool], round: int) -> bool:
        """Record a round of this kind; return False if the model cannot be recorded."""
        assert self._chunk is not None
        chunk = self._chunk

        def warm_up() -> None:
            program.set_clock(round, chunk)
            program.make_round(*kind)

        warm_up()  # only the first use of a model decides whether it is repeatable
        if not self._engine.gradients.repeatable:
            self.reason = "the model does not consist of known layers"
            self._forget()
            return False
        self._count[kind] = 0
        self._replays[kind] = self._recorder(warm_up, lambda: program.make_round(*kind))
        program.set_clock(round, chunk)
        return True

    def _compare(self, program: RoundProgram, carries: bool, before: State) -> None:
        """Raise _MismatchError unless the engine makes the same round from `before` as the replay did."""
        engine, round = self._engine, before.releases
        gradient = before.rows
        if carries:
            gradient = program.sums
            try:
                chosen = engine.select(round, engine.device).padded(self._tables.width)
                expected = engine.mean_gradients(before, chosen)
            except DivergedError as error:
                raise _MismatchError("an agent diverged") from error
            if not _close(gradient, expected, engine.gradients.clip):
                raise _MismatchError(f"the gradients of round {round} differ from the recorded ones")
        count = len(engine.layout.made(round))
        again = engine.buffers.empty(count)
        engine.mixer(RowWork(round=round, before=before.rows, gradient=gradient, out=again))
        if not torch.equal(again, program.buffers[round % 2][:count]):
            raise _MismatchError(f"the rows of round {round} differ from the recorded ones")

    def _ready(self) -> tuple[RoundProgram, RoundTables]:
        """Return the program and the tables of this run; make them if they do not exist."""
        engine = self._engine
        if self._program is not None and self._program.buffers[0] is not engine.buffers.of(0):
            self._forget()  # the engine has released its buffers
        if self._program is None:
            assert isinstance(engine.mixer, CudaMixer)
            carries = engine.plan.carries
            self._carries: list[bool] = np.asarray(carries.values.any(axis=1))[carries.which].tolist()
            self._tables = RoundTables(engine, engine.mixer, ahead=engine.device.type == "cuda")
            self._program = RoundProgram(engine, self._tables, FailureFlags(engine.device, self._blanks))
            self._recorder: Record = self._record or CudaGraphs(engine.device)
        return self._program, self._tables

    def _forget(self) -> None:
        """Drop the recordings, which use memory and contain addresses of rows."""
        self._program, self._chunk = None, None
        self._replays, self._count = {}, {}

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._forget()
        if self._engine.device.type == "cuda":
            with suppress(RuntimeError):  # the device may have failed; rounds do not need this call
                torch.cuda.empty_cache()
        warnings.warn(
            f"Rounds are made one by one on this device: {reason}. Results are correct, but slower.",
            stacklevel=4,
        )


def supports(engine: Engine, off_device: bool) -> str | None:
    """Return None if rounds of `engine` can be recorded, and otherwise the reason.

    `off_device`: whether the recorder works without a GPU, as in tests.
    """
    if os.environ.get(EAGER_VARIABLE, "0") not in ("", "0"):
        return f"{EAGER_VARIABLE} is set"
    if reason := unsupported(engine.plan, {Capability.SHARED_DRAWS, Capability.PRUNED_ROWS}):
        return f"the plan needs {reason}"
    persons = engine.shards.person_records
    full = all(isinstance(batches, Full) for batches in engine.batches)
    obstacles = {
        "there is no CUDA device": engine.device.type != "cuda" and not off_device,
        "rows are not mixed by one kernel": not isinstance(engine.mixer, CudaMixer),
        "parameters are not of type float32": engine.gradients.flat.dtype != torch.float32,
        "rows come from other processes": engine.fetch is not None or not engine.layout.whole,
        "an intervention changes rounds": bool(engine.intervention.plant or engine.intervention.tamper),
        "layers draw random numbers": engine.random_layers,
        "batches of persons differ in their records": not (persons is None or persons.single or full),
    }
    return next((reason for reason, holds in obstacles.items() if holds), None)


def _is_compared(replay: int) -> bool:
    """Return whether replay number `replay` is compared with the engine.

    These are the first two replays, and then fewer and fewer. The second replay shows whether the clock
    advances. A comparison costs as much as twenty replays.

    >>> [number for number in range(1000) if _is_compared(number)]
    [1, 2, 8, 64, 512]
    """
    return replay == 2 or (replay.bit_count() == 1 and replay.bit_length() % 3 == 1)


def _close(gradients: Tensor, expected: Tensor, clip: float) -> bool:
    """Return whether the gradients of all agents are within the tolerance of `expected`; NaN never is."""
    coarse = gradients.is_cuda and torch.backends.cuda.matmul.allow_tf32
    distance = torch.linalg.vector_norm(gradients - expected, dim=1)
    lengths = torch.linalg.vector_norm(expected, dim=1)
    allowed = torch.maximum(lengths, lengths.mean()).mul_(GRADIENT_TOLERANCE).add_(CLIP_TOLERANCE * clip)
    return bool((distance <= (10 if coarse else 1) * allowed).all())
