"""Bands of the Gram matrix M for observers that read every estimate, for a batch of questions at once.

If all estimates are seen, a row that is made from a hidden row a is w·a plus fresh noise of variance ν. So
all rows that are seen in a round and made from a are together one observation of a, with precision q = Σ
w²/ν. Observations of different hidden rows have independent noise. P is the covariance of the hidden rows,
and P_O its part that belongs to observed rows. Given the observations, P ← P - P_O' (P_OO + 1/q)⁻¹ P_O. The
hidden rows of the next round have the covariance w·P·w' + ν (Kalman 1960). The shifts δ of the hidden rows
are filtered in the same way, and δᵀ(P_OO + 1/q)⁻¹δ is added to M. This is the M of `observer_filter` and
`gram_matrix`, computed with matrices whose size is the number of hidden rows (tests compare both).

`aligned` contains the sums of M over the rounds of each residue class. This is the loss of the aligned
record, whose changes all have the same direction.

A change is followed until the information that it can still reveal is negligible, or for `longest` rounds.
The rest is at most what an observer would learn that sees all rows which the change enters in the next round.
That is Σ (w·shift)²/ν, because the covariance of these rows is at least that of their fresh noise.

**Guarantees.** As `bands` (`gram_matrix`): `values` has the near part, and the length of the far part is at
most `rest`. Rounding is as in `observer_filter`: the loss is stated for noise whose variance is smaller by
E = `VARIANCE_ROUNDING`·V in every row seen, where V is the variance that entered the row unseen. The
covariance C of the observations satisfies C - E >= (1 - ρ)C with ρ = Σ E/ν, because C is at least the fresh
noise. `UnsuitedError` is raised if ρ >= 1/2 (deviations that differ by a factor of millions).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topdp.base.array_types import Floats, Ints
from topdp.privacy.observers._reader_layout import ReaderLayout, UnsuitedError
from topdp.privacy.observers.gram_matrix import MAX_FAR_PART, Band
from topdp.privacy.observers.observer_filter import VARIANCE_ROUNDING

# The number of rounds between attempts to stop following old changes.
DROP_EVERY_ROUNDS = 4


class TrackedChanges(NamedTuple):
    """What an observer learns about the owners of one question (see `_reader_layout`).

    `bands`: the band of M of each owner. `aligned` [owners, classes]: the sum of M over the rounds that are
    equal modulo the period.
    """

    bands: list[Band]
    aligned: Floats


class ChangeTracker:
    """The state of following changes for a batch of questions: P and shifts of hidden rows, and M so far.

    `S` has the shifts of single changes, and `A` the shifts of sums of changes over the rounds of a residue
    class. In all arrays a row of zeros follows the hidden rows.

    `periods` [questions, owners]: two rounds are in one class if they are equal modulo the period; None: no
    sums over classes are computed, and each question has `owners` owners. `longest`: the most rounds for
    which a change is followed. `single`: whether single changes are followed too; otherwise there are no
    bands. `rest`: how much a change that is no longer followed may still reveal, relative to the largest
    change seen.
    """

    def __init__(
        self,
        layout: ReaderLayout,
        periods: Ints | None,
        longest: int | None = None,
        *,
        single: bool = True,
        rest: float = MAX_FAR_PART,
        owners: int = 1,
    ) -> None:
        self.layout, self.periods, self.longest, self.single = layout, periods, longest, single
        self.tolerated_rest = rest
        self.R, self.B, self.rows = layout.at.shape
        classes = 0 if periods is None else min(int(periods.max()), self.R)
        self.owners = owners = owners if periods is None else periods.shape[1]
        self.K = layout.widest
        self.low = 0  # the oldest change that is still followed
        k, W = self.K + 1, DROP_EVERY_ROUNDS if single else 0
        self.P = np.zeros((self.B, k, k))
        self.V = np.zeros((self.B, k))
        self.A = np.zeros((self.B, k, owners, classes))
        self.aligned = np.zeros((self.B, owners, self.A.shape[3]))
        self.S = np.zeros((self.B, k, owners, W))
        self.G = np.zeros((self.B, owners, W, W))
        self.slots: Ints = np.full((self.B, self.rows + 1), self.K)  # the position of a row among hidden rows
        self.values = np.zeros((self.B, owners, self.R, W))
        self.rest = np.zeros((self.B, owners, self.R))
        self.leaks = np.zeros((self.B, owners, self.R), bool)
        self.largest_written = np.zeros(self.B)  # the most that a change revealed whose row of M is final

    def all(self) -> list[TrackedChanges]:
        """Return the bands and the sums over classes for each question."""
        for r in range(self.R):
            if self.single and r and r % DROP_EVERY_ROUNDS == 0:
                self._drop_old(r)
            self._observe(r)
            self._make(r)
        if self.single:
            self._write(self.R - self.low)
        return [self._of(b) for b in range(self.B)]

    def _of(self, b: int) -> TrackedChanges:
        """Return the results of question b."""
        parts = zip(self.values[b], self.rest[b], self.leaks[b], strict=True)
        return TrackedChanges([Band(*part) for part in parts] if self.single else [], self.aligned[b])

    def _observe(self, r: int) -> None:
        """Process the seen rows of round r as observations of hidden rows of round r - 1 and of gradients."""
        layout, k = self.layout, self.K + 1
        b, a = np.nonzero(layout.tells[r])
        if not len(b):
            return
        slot = self.slots[b, layout.at[r, b, a]]  # NO_ROW selects the last element, which stands for no row
        w, nu, d = layout.weight[r, b, a], layout.variance[r, b, a], layout.step[r, b, a]
        share = np.bincount(b, 1 + w * w * self.V[b, slot] / nu, minlength=self.B) * VARIANCE_ROUNDING
        if not (share < 0.5).all():
            raise UnsuitedError("Some noise is as small as rounding.")
        guard = 1 / (1 - share)

        q = np.asarray(np.bincount(b * k + slot, w * w / nu, self.B * k), np.float64).reshape(self.B, k)
        q[:, -1] = 0.0
        mine = np.flatnonzero(d)
        b, slot, owner = b[mine], slot[mine], layout.owner[b, a][mine]
        alone = np.bincount(
            b * self.owners + owner, (d * d / nu)[mine], minlength=self.B * self.owners
        ).reshape(self.B, self.owners)
        enters = np.zeros((self.B, k, self.owners))
        np.add.at(enters, (b, slot, owner), (w * d / nu)[mine])
        enters[:, -1] = 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            enters = np.where(q[:, :, None] > 0, enters / q[:, :, None], 0.0)
        # Σ d²/ν over the rows made from one hidden row, without the part that their weighted mean reveals
        alone = np.maximum(alone - np.einsum("bk,bko,bko->bo", q, enters, enters), 0.0)
        alone *= guard[:, None]
        if self.single:
            self.G[:, :, r - self.low, r - self.low] += alone
        if self.periods is not None:
            questions, owners = np.indices(self.periods.shape)
            self.aligned[questions, owners, r % self.periods] += alone
        self._condition(r, q, enters, guard)

    def _condition(self, r: int, q: Floats, enters: Floats, guard: Floats) -> None:
        """Condition on observations of hidden rows.

        `q` [questions, hidden]: their precisions. `enters`: the shift of each observation by the gradients of
        round r. `guard`: the factor on information because of rounding.
        """
        k, B = self.K + 1, self.B
        batch, seen = np.nonzero(q)
        if not len(batch):
            return
        rank, widest_batch = _ranks(batch, B)
        at = np.full((B, widest_batch), self.K)
        at[batch, rank] = seen
        noise = np.ones((B, widest_batch))
        noise[batch, rank] = 1 / q[batch, seen]
        flat = (at + np.arange(B)[:, None] * k).reshape(-1)
        PO = self.P.reshape(-1, k)[flat].reshape(B, widest_batch, k)
        C = PO[np.arange(B)[:, None, None], np.arange(widest_batch)[:, None], at[:, None, :]]
        C[:, np.arange(widest_batch), np.arange(widest_batch)] += noise
        entering = enters.reshape(B * k, -1)[flat].reshape(B, widest_batch, self.owners)
        sums = self.A.reshape(B * k, -1)[flat].reshape(B, widest_batch, *self.A.shape[2:])
        if self.periods is not None:
            questions, owner = np.indices(self.periods.shape)
            sums[questions, :, owner, r % self.periods] += entering.transpose(0, 2, 1)
        parts = [PO, sums.reshape(B, widest_batch, -1)]
        if self.single:
            delta = self.S.reshape(B * k, -1)[flat].reshape(B, widest_batch, self.owners, -1)
            delta[..., r - self.low] += entering
            parts.append(delta.reshape(B, widest_batch, -1))
        # The system is solved column by column, without an inverse. The error of P is then only the rounding
        # of V, however correlated the observations are. C is scaled to ones on its diagonal, so that its
        # condition depends only on the fresh noise.
        root = np.sqrt(np.maximum(np.einsum("boo->bo", C), 0.0))[:, :, None]
        if not (root > 0).all():
            raise UnsuitedError("Some noise is as small as rounding.")
        scaled = C / root / root.transpose(0, 2, 1)
        try:
            solved = np.linalg.solve(scaled, np.concatenate(parts, axis=2) / root) / root
        except np.linalg.LinAlgError:
            raise UnsuitedError("Observations are equal up to rounding.") from None
        back = np.ascontiguousarray(PO.transpose(0, 2, 1))
        moved = back @ solved
        self.P -= moved[:, :, :k]
        end = k + parts[1].shape[2]
        self.A -= moved[:, :, k:end].reshape(self.A.shape)
        if self.periods is not None:
            revealed = (parts[1] * solved[:, :, k:end]).sum(axis=1).reshape(self.aligned.shape)
            self.aligned += np.maximum(revealed, 0.0) * guard[:, None, None]
        if self.single:
            self.S -= moved[:, :, end:].reshape(self.S.shape)
            self._gather(parts[2], solved[:, :, end:], guard)

    def _gather(self, delta: Floats, solved: Floats, guard: Floats) -> None:
        """Add δᵀ C⁻¹ δ to the M of each owner; `solved` is C⁻¹ δ."""
        B, widest_batch, W = self.B, delta.shape[1], self.S.shape[3]
        transposed = delta.reshape(B, widest_batch, self.owners, W).transpose(0, 2, 3, 1)
        product = transposed @ solved.reshape(B, widest_batch, self.owners, W).transpose(0, 2, 1, 3)
        self.G += product * guard[:, None, None, None]

    def _make(self, r: int) -> None:
        """Replace the state of the hidden rows of round r - 1 by that of the hidden rows of round r."""
        layout, k, B = self.layout, self.K + 1, self.B
        b, a = np.nonzero(layout.live[r])
        rank, _ = _ranks(b, B)
        source = np.full((B, k), self.K)
        weight, nu = np.zeros((B, k)), np.zeros((B, k))
        source[b, rank] = self.slots[b, layout.at[r, b, a]]
        weight[b, rank] = layout.weight[r, b, a]
        nu[b, rank] = layout.variance[r, b, a]
        flat = (source + np.arange(B)[:, None] * k).reshape(-1)
        # P ← w P w' + ν: first the rows, and then the columns, as rows of the transpose
        half = self.P.reshape(-1, k)[flat].reshape(B, k, k) * weight[:, :, None]
        turned = np.ascontiguousarray(half.transpose(0, 2, 1)).reshape(-1, k)[flat]
        self.P = turned.reshape(B, k, k) * weight[:, :, None]
        self.P[:, np.arange(k), np.arange(k)] += nu
        d, owner = layout.step[r, b, a], layout.owner[b, a]
        mine = np.flatnonzero(d)
        b_mine, owner_mine = b[mine], owner[mine]
        self.A, self.S = (
            shifts.reshape(B * k, -1)[flat].reshape(shifts.shape) * weight[:, :, None, None]
            if shifts.size
            else shifts
            for shifts in (self.A, self.S)
        )
        if self.periods is not None:
            self.A[b_mine, rank[mine], owner_mine, (r % self.periods)[b_mine, owner_mine]] += d[mine]
        if self.single:
            self.S[b_mine, rank[mine], owner_mine, r - self.low] += d[mine]
        self.V = weight**2 * self.V.reshape(-1)[flat].reshape(B, k) + nu
        self.slots = np.full((B, self.rows + 1), self.K)
        self.slots[b, a] = rank

    def _drop_old(self, r: int) -> None:
        """Stop following changes of gradients in earlier rounds if they can reveal little from round r on, or
        if they were followed long enough.
        """
        layout, k, followed = self.layout, self.K + 1, r - self.low
        b, a = np.nonzero((layout.tells[r] | layout.live[r]) & (layout.at[r] >= 0))
        slot = self.slots[b, layout.at[r, b, a]]
        w, nu = layout.weight[r, b, a], layout.variance[r, b, a]
        Q = np.bincount(b * k + slot, w * w / nu, minlength=self.B * k).reshape(self.B, k)
        Q[:, -1] = 0.0
        rest = np.sqrt(np.einsum("bk,bkow->bow", Q, self.S[..., :followed] ** 2))
        largest = np.sqrt(self._largest())[:, None, None]
        over = (rest > self.tolerated_rest / 2 * largest).any(axis=(0, 1))
        dropped = int(over.argmax()) if over.any() else followed
        if self.longest is not None:
            dropped = max(dropped, followed - self.longest)
        # A bound on rounding is added, as in `bands`.
        self.rest[:, :, self.low : self.low + dropped] = rest[:, :, :dropped] + MAX_FAR_PART / 2 * largest
        self._write(dropped)
        remaining = followed - dropped
        W = remaining + DROP_EVERY_ROUNDS
        S, G = np.zeros((self.B, k, self.owners, W)), np.zeros((self.B, self.owners, W, W))
        S[..., :remaining] = self.S[..., dropped:followed]
        G[..., :remaining, :remaining] = self.G[..., dropped:followed, dropped:followed]
        self.S, self.G, self.low = S, G, self.low + dropped

    def _largest(self) -> Floats:
        """Return the largest information that a single change has revealed so far [questions]."""
        now = np.einsum("boww->bow", self.G).max(axis=(1, 2), initial=0.0)
        return np.asarray(np.maximum(self.largest_written, now))

    def _write(self, dropped: int) -> None:
        """Store the rows of M of the `dropped` oldest changes, which are final."""
        W = min(self.G.shape[2], self.R - self.low)
        if self.values.shape[3] < W:
            room = ((0, 0), (0, 0), (0, 0), (0, W - self.values.shape[3]))
            self.values = np.pad(self.values, room)
        for s in range(dropped):
            self.values[:, :, self.low + s, : W - s] = self.G[:, :, s, s:W]
            self.largest_written = np.maximum(self.largest_written, self.G[:, :, s, s].max(axis=1))


def _ranks(batch: Ints, size: int) -> tuple[Ints, int]:
    """Return the index of each entry within its question, and the largest number of entries of a question.

    `batch`: the question of each entry, in ascending order. `size`: the number of questions.
    """
    count = np.bincount(batch, minlength=size)
    return np.arange(len(batch)) - np.repeat(np.cumsum(count) - count, count), int(count.max(initial=0))
