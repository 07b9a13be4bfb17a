"""Several rounds of an engine at once, as replays of recordings, where that can be done and is proven right.

Of every recording the replays number 1, 2, 8, 64, 512, ... are made again by the engine and compared. What a
recording cannot do (an agent that diverged, a record that overflows) the engine does again from before. What
is recorded is in `captured.py`; what a round is, in `engine.py`.
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
from topdp.learning.gradients.failure_flags import FailureFlags
from topdp.simulator.cuda_graphs import Graphs
from topdp.simulator.cuda_program import Program
from topdp.simulator.engine import Engine, State, WrongReplayError
from topdp.simulator.ranks.ranked_engine import RankedEngine
from topdp.simulator.round_tables import Chunk, Tables
from topdp.simulator.row_mixing import Work
from topdp.simulator.row_mixing_cuda import Fused

Record = Callable[[Callable[[], None], Callable[[], None]], Callable[[], None]]
"""(to warm up, to record) -> what does the same as a call of the second, and may have called the first."""

OFF = "TOPDP_EAGER"  # a variable of the environment: anything but 0 lets every round be made by itself

CLOSE = 1e-3
"""How far mean gradients may be apart, relative to their length: for rounding, not for other records. Ten
times that where matrix products are rounded to 10 bits."""

CANCELLED = 1e-6
"""And relative to the clip, which bounds what may have cancelled."""

TIRED = 3  # stretches made again in vain, after which rounds are made one by one


class _MismatchError(Exception):
    """A replay differs from the engine's round."""


@final
class Stretches:
    """Advances `engine` by one or more releases a call.

    **Guarantees.** Rows are those that `Engine.advance` makes, up to rounding of sums of gradients; each draw
    is that of its round, bit by bit wherever compared. A state that is given is intact if a call fails; one
    that an interrupt leaves otherwise, the engine does not hold.
    """

    def __init__(self, engine: Engine | RankedEngine, record: Record | None = None) -> None:
        self._engine = engine
        self._record = record
        self._program: Program | None = None
        self._chunk: Chunk | None = None
        self._replays: dict[tuple[int, bool], Callable[[], None]] = {}
        self._count: dict[tuple[int, bool], int] = {}
        self._one_by_one_until = 0
        self._in_vain = 0
        self._blanks = False
        self.reason = _why_not(engine, record is not None)
        """Why every round is made by itself; None while that is not so."""

    def advance(self, state: State, at_most: int = 1) -> State:
        """Makes the next release, or several up to `at_most`, where they can be made at once."""
        if self.reason is not None or state.releases < self._one_by_one_until:
            return self._engine.advance(state)
        try:
            made = self._stretch(state, max(1, at_most))
        except (DivergedError, WrongReplayError):
            raise
        except _MismatchError as error:
            self._give_up(str(error))
        except Exception as error:  # of the recording, in many types; an error of the round comes again
            first = error.__context__ or error  # a recording that was broken off fails once more at its end
            self._give_up(f"{type(first).__name__}: {str(first).partition(chr(10))[0]}")
        else:
            if made is not None:
                return made
        return self._engine.advance(state)

    def _stretch(self, state: State, at_most: int) -> State | None:
        """None: nothing was made, and the rows of `state` are what they were."""
        program, tables = self._ready()
        r = state.releases
        if self._chunk is None or r not in self._chunk.rounds:
            self._chunk = None  # until all of the next is there
            chunk = tables.chunk(r // tables.length)
            program.load(chunk)
            self._chunk = chunk
        count = self._chunk.together(r, at_most)
        if count == 0:
            return None
        program.begin(state, self._chunk)
        try:
            for round in range(r, r + count):
                if not self._one(program, round):
                    program.put_back(state)
                    return None
            tables.prepare(r // tables.length + 1)
            seen = program.watch.read()
        except BaseException:
            program.put_back(state)
            raise
        if seen.ok:
            return program.end(state, count)
        program.put_back(state)
        self._one_by_one_until = r + count
        if not seen.examples:  # from now on they are left out in every round, as the engine does
            self._blanks = True
            self._forget()
        else:
            self._in_vain += 1
            if self._in_vain == TIRED:
                self.reason = "norms of rows overflow"
                self._forget()
        return None

    def _one(self, program: Program, round: int) -> bool:
        """Makes one round. False: this model cannot be recorded, and nothing was made."""
        engine = self._whole
        kind = (round % 2, self._carries[round])
        if kind not in self._replays and not self._recorded(program, kind, round):
            return False
        self._count[kind] += 1
        number = self._count[kind]
        if not _is_compared(number):
            self._replays[kind]()
            return True
        before = engine._aligned(program.buffers[1 - kind[0]][: self._made(round - 1)])
        self._replays[kind]()
        try:
            self._compare(program, kind[1], State(round, before))
        except _MismatchError as error:
            if not program.watch.read().ok:  # then the whole stretch is made again
                return True
            if number > 2:
                raise WrongReplayError(
                    f"Expected round {round} as the engine makes it, got another from its recording, which "
                    f"was right before: {error}. What the run has kept may be wrong: do not use it or go "
                    f"on from it. Please report this, and start again with {OFF}=1."
                ) from error
            raise
        return True

    def _recorded(self, program: Program, kind: tuple[int, bool], round: int) -> bool:
        assert self._chunk is not None
        chunk = self._chunk

        def one() -> None:
            program.set_clock(round, chunk)
            program.one(*kind)

        one()  # the model is looked at when it is first used
        if not self._whole.gradients.repeatable:
            self.reason = "the model is not made of known layers alone"
            self._forget()
            return False
        self._count[kind] = 0
        self._replays[kind] = self._recorder(one, lambda: program.one(*kind))
        program.set_clock(round, chunk)
        return True

    def _compare(self, program: Program, carries: bool, before: State) -> None:
        """Makes the round after `before` once more, by the engine, from what was there and by its number."""
        engine, round = self._whole, before.releases
        gradient = before.rows
        if carries:
            gradient = program.sums
            try:
                chosen = self._tables.as_in_here(engine._select(round, engine.device))
                expected = engine._mean_gradients(before, chosen)
            except DivergedError as error:
                raise _MismatchError("an agent diverged") from error
            if not _close(gradient, expected, engine.gradients.clip):
                raise _MismatchError(f"the gradients of round {round} differ from those it records")
        made = self._made(round)
        again = engine._rows(torch.empty, made)
        engine._mix(Work(round, before.rows, gradient, again))
        if not torch.equal(again, program.buffers[round % 2][:made]):
            raise _MismatchError(f"the rows of round {round} differ from those it records")

    def _ready(self) -> tuple[Program, Tables]:
        engine = self._whole
        if self._program is not None and self._program.buffers[0] is not engine._buffer(0):
            self._forget()  # the engine has given its rows back
        if self._program is None:
            assert isinstance(engine._mix, Fused)
            on_device = engine.device.type == "cuda"
            carries = engine.plan.carries
            self._carries: list[bool] = np.asarray(carries.values.any(axis=1))[carries.which].tolist()
            self._tables = Tables(engine, engine._mix, ahead=on_device)
            self._program = Program(engine, self._tables, FailureFlags(engine.device, self._blanks))
            self._recorder: Record = self._record or Graphs(engine.device)
        return self._program, self._tables

    def _forget(self) -> None:
        """Recordings hold memory, and addresses of rows."""
        self._program, self._chunk = None, None
        self._replays, self._count = {}, {}

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._forget()
        if self._whole.device.type == "cuda":
            with suppress(RuntimeError):  # of a device on which something failed; rounds need it not
                torch.cuda.empty_cache()
        warnings.warn(
            f"Rounds are made one by one on this device: {reason}. Results are as they should be, and take "
            "longer.",
            stacklevel=4,
        )

    @property
    def _whole(self) -> Engine:
        assert isinstance(self._engine, Engine)
        return self._engine

    def _made(self, round: int) -> int:
        return len(self._whole.layout.made(round))


def _why_not(engine: Engine | RankedEngine, anywhere: bool) -> str | None:
    """Why rounds of `engine` cannot be recorded; `anywhere`: by something that needs no GPU."""
    if os.environ.get(OFF, "0") not in ("", "0"):
        return f"{OFF} is set"
    if not isinstance(engine, Engine):
        return "rows come from other processes"
    plan = engine.plan
    others = {
        "there is no CUDA device": engine.device.type != "cuda" and not anywhere,
        "rows are not mixed by one kernel": not isinstance(engine._mix, Fused),
        "parameters are not of type float32": engine.gradients.flat.dtype != torch.float32,
        "rows are rounded": plan.rounded is not None,
        "Adam adjusts rounds": plan.adaptive is not None,
        "rows come from other processes": engine._fetch is not None or not engine.layout.whole,
        "something looks into rounds": engine._plant is not None or engine._tamper is not None,
        "layers draw random numbers": engine._random_layers,
    }
    return next((reason for reason, holds in others.items() if holds), None)


def _is_compared(replay: int) -> bool:
    """Two rounds at once, for a clock that stands still, and then ever fewer: each takes as long as twenty.

    >>> [number for number in range(1000) if _is_compared(number)]
    [1, 2, 8, 64, 512]
    """
    return replay == 2 or (replay.bit_count() == 1 and replay.bit_length() % 3 == 1)


def _close(found: Tensor, expected: Tensor, clip: float) -> bool:
    """Agent by agent. What is no number is close to nothing."""
    coarse = found.is_cuda and torch.backends.cuda.matmul.allow_tf32
    apart = torch.linalg.vector_norm(found - expected, dim=1)
    lengths = torch.linalg.vector_norm(expected, dim=1)
    allowed = torch.maximum(lengths, lengths.mean()).mul_(CLOSE).add_(CANCELLED * clip)
    return bool((apart <= (10 if coarse else 1) * allowed).all())
