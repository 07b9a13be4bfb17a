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
most `rest`. All rounding is bounded, by four arguments. u is the unit roundoff, γ_n is defined in
`base.rounding`.

1. *Less noise never reveals less.* P, as stored, is the covariance of a plan with less noise. Each round,
   more of the fresh noise ν of hidden rows is taken away (g) than P can be wrong by rounding. If |E_ab| <=
   τ·√V_a·√V_b for m rows, then diag(g) - E is positive semidefinite for g_a = m·τ·V_a (Gershgorin). V is the
   variance that entered a row unseen, so P_aa <= V_a. Likewise, the noise of an observation is a little less
   than 1/q.
2. *A noisy place hides its own errors.* Shifts obey their recursion exactly if small errors F may enter
   where fresh noise enters. That noise alone limits what F reveals to √(Σ F²/ν'), where ν' is what is left of
   ν. By the triangle inequality, the length of the whitened shift of a change is wrong by at most the sum of
   these terms over all rounds.
3. *Solutions are checked.* The residual of C·x = δ is computed. It is such an error in the observation.
4. *A shift is never larger than the noise that can hide it.* From some round on, a change reveals at most
   I² = Σ shift²/ν', over its own rows or over the rows that it enters next. So |S_a| <= √V_a·I in all later
   rounds. I is computed anew every few rounds, from the computed shifts. As long as the errors since then are
   at most I, twice this value is a bound on computed shifts.

`UnsuitedError` is raised if more than `MAX_NOISE_SHARE` of some noise would be taken away.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topdp.base.array_types import Floats, Ints
from topdp.base.rounding import binary_root, gamma
from topdp.privacy.observers._reader_layout import ReaderLayout, UnsuitedError
from topdp.privacy.observers.gram_matrix import MAX_FAR_PART, Band

# The number of rounds between attempts to stop following old changes.
DROP_EVERY_ROUNDS = 4

# The largest share of the fresh noise of a row or an observation that may be taken away because of rounding.
MAX_NOISE_SHARE = 1 / 64
# The most by which the information that a dropped change can reveal grows if that share is missing twice.
LESS_NOISE = 1 / (1 - 2 * MAX_NOISE_SHARE)


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
        self.seen_rows = int(layout.tells.sum(axis=2).max(initial=0))  # the most in a round
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
        # What follows bounds rounding (see the module).
        self.sources = self._sources()
        self.reveals = np.zeros((self.B, owners, W))  # I, of the changes that are followed
        self.error = np.zeros((self.B, owners, W))  # the sum of the errors of these changes
        self.error_before = np.zeros((self.B, owners, W))  # the same when I was computed
        self.rounding = np.zeros((self.B, owners, self.R))  # the same of the changes whose row of M is final
        self.reach = np.ones(self.B)  # the largest Σ C/R over the observations of a round
        self.wrong = np.zeros(self.B)  # τ: the rounding of P given the observations of the round

    def all(self) -> list[TrackedChanges]:
        """Return the bands and the sums over classes for each question."""
        for r in range(self.R):
            if self.single and r and r % DROP_EVERY_ROUNDS == 0:
                self._drop_old(r)
            if self.single:
                self.reveals[..., r - self.low] = self.sources[..., r]
            self._observe(r)
            self._make(r)
        if self.single:
            self._write(self.R - self.low)
        return [self._of(b) for b in range(self.B)]

    def _of(self, b: int) -> TrackedChanges:
        """Return the results of question b."""
        if not self.single:
            return TrackedChanges([], self.aligned[b])
        # Every entry of M is a sum of at most R + rows terms. By Cauchy and Schwarz, the absolute values of
        # its products are at most 2·√reach times the lengths.
        products = 12 * gamma(self.R + self.seen_rows + 8) * np.sqrt(self.reach[b])
        rounding = self.rounding[b] + products * np.sqrt(np.maximum(self.values[b, :, :, 0], 0.0))
        parts = zip(self.values[b], self.rest[b], self.leaks[b], rounding, strict=True)
        return TrackedChanges([Band(*part) for part in parts], self.aligned[b])

    def _observe(self, r: int) -> None:
        """Process the seen rows of round r as observations of hidden rows of round r - 1 and of gradients."""
        layout, k = self.layout, self.K + 1
        b, a = np.nonzero(layout.tells[r])
        if not len(b):
            return
        slot = self.slots[b, layout.at[r, b, a]]  # NO_ROW selects the last element, which stands for no row
        w, nu, d = layout.weight[r, b, a], layout.variance[r, b, a], layout.step[r, b, a]
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
        whole = alone * (1 + gamma(8 * (self.seen_rows + 8)))  # the difference is enlarged by its rounding
        alone = np.maximum(whole - np.einsum("bk,bko,bko->bo", q, enters, enters), 0.0)
        if self.single:
            self.G[:, :, r - self.low, r - self.low] += alone
        if self.periods is not None:
            questions, owners = np.indices(self.periods.shape)
            self.aligned[questions, owners, r % self.periods] += alone
        self._condition(r, q, enters)

    def _condition(self, r: int, q: Floats, enters: Floats) -> None:
        """Condition on observations of hidden rows.

        `q` [questions, hidden]: their precisions. `enters`: the shift of each observation by the gradients of
        round r.
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
        diagonal = np.arange(widest_batch)
        # The noise of the observations is at most 1/q and at least `lowest`, whatever is rounded.
        lost = gamma(self.seen_rows + 8) * noise + gamma(8) * (C[:, diagonal, diagonal] + noise)
        if not (lost <= MAX_NOISE_SHARE / 2 * noise).all():
            raise UnsuitedError("Some noise is as small as rounding.")
        C[:, diagonal, diagonal] += noise - lost
        lowest = noise - 2 * lost
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
        # C is scaled to about one on its diagonal, by powers of two, which is exact.
        root = binary_root(C[:, diagonal, diagonal])[:, :, None]
        scaled = C / root / root.transpose(0, 2, 1)
        right = np.concatenate(parts, axis=2) / root
        try:
            solved = np.linalg.solve(scaled, right)
        except np.linalg.LinAlgError:
            raise UnsuitedError("Observations are equal up to rounding.") from None
        if self.single:
            self._check(scaled, right, solved, root[:, :, 0] ** 2 / lowest)
        solved /= root
        back = np.ascontiguousarray(PO.transpose(0, 2, 1))
        moved = back @ solved
        self.P -= moved[:, :, :k]
        end = k + parts[1].shape[2]
        self.A -= moved[:, :, k:end].reshape(self.A.shape)
        if self.periods is not None:
            revealed = (parts[1] * solved[:, :, k:end]).sum(axis=1).reshape(self.aligned.shape)
            self.aligned += np.maximum(revealed, 0.0)
        if self.single:
            self.S -= moved[:, :, end:].reshape(self.S.shape)
            self._gather(parts[2], solved[:, :, end:])

    def _check(self, C: Floats, right: Floats, solved: Floats, share: Floats) -> None:
        """Bound the errors of the solution of C·x = `right`, whose columns are those of P and of all shifts.

        `share` [questions, observed]: 1/noise of each observation, scaled as C.
        """
        k, o = self.K + 1, C.shape[1]
        # At least Σ C/R, because 1/2 <= C <= 2; a shift or column of length I has entries of at most √C·I.
        self.seen_reach = np.maximum(2.0, 2 * share.sum(axis=1))
        self.reach = np.maximum(self.reach, self.seen_reach)
        roots = np.sqrt(self.seen_reach)[:, None]
        residual = right - C @ solved
        lengths = np.sqrt(np.einsum("bo,boc,boc->bc", share, residual, residual))
        sums = np.abs(solved).sum(axis=1)
        # The residual is itself rounded: by γ·(|right| + |C|·|x|) in every entry.
        lengths = 1.01 * lengths + 3 * gamma(o + 16) * roots * sums
        shifts = slice(right.shape[2] - self.error[0].size, None)
        self.error += lengths[:, shifts].reshape(self.error.shape)
        self.error += 6 * gamma(o + self.seen_rows + 16) * roots[:, :, None] * self.reveals
        # P_O'·C⁻¹·P_O is P_O'·x up to xᵀr + rᵀC⁻¹r, r the residual: all in shares of √V_a·√V_b.
        with np.errstate(divide="ignore", invalid="ignore"):
            unit = np.where(self.V > 0, 1 / np.sqrt(self.V), 0.0)
        largest_sum = (sums[:, :k] * unit).max(axis=1)
        largest_left = (np.abs(residual[:, :, :k]).max(axis=1) * unit).max(axis=1) + gamma(o + 16) * (
            2 + 2 * largest_sum
        )
        length = (lengths[:, :k] * unit).max(axis=1)
        self.wrong = 1.01 * (largest_sum * largest_left + length**2 + 2 * gamma(o + 16) * (1 + largest_sum))

    def _gather(self, delta: Floats, solved: Floats) -> None:
        """Add δᵀ C⁻¹ δ to the M of each owner; `solved` is C⁻¹ δ."""
        B, widest_batch, W = self.B, delta.shape[1], self.S.shape[3]
        transposed = delta.reshape(B, widest_batch, self.owners, W).transpose(0, 2, 3, 1)
        product = transposed @ solved.reshape(B, widest_batch, self.owners, W).transpose(0, 2, 1, 3)
        self.G += product

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
        self.V = weight**2 * self.V.reshape(-1)[flat].reshape(B, k)
        if self.single:
            nu -= self._taken(nu)
        self.P[:, np.arange(k), np.arange(k)] += nu
        self.P = (self.P + self.P.transpose(0, 2, 1)) / 2
        self.V += nu
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
        self.slots = np.full((B, self.rows + 1), self.K)
        self.slots[b, a] = rank

    def _sources(self) -> Floats:
        """Return I [questions, owners, R] of every change in its own round, by the noise of its rows."""
        layout = self.layout
        r, b, a = np.nonzero((layout.tells | layout.live) & (layout.step != 0))
        information = layout.step[r, b, a] ** 2 / layout.variance[r, b, a] * LESS_NOISE * 1.01
        squares = np.zeros((self.B, self.owners, self.R))
        np.add.at(squares, (b, layout.owner[b, a], r), information)
        return np.sqrt(squares)

    def _taken(self, nu: Floats) -> Floats:
        """Return g, the noise that is taken from each hidden row of a round; `nu`: its fresh noise.

        V must be the variance that enters from the hidden rows of the round before.
        """
        count = (nu > 0).sum(axis=1)
        share = (1.01 * count * self.wrong + gamma(8 * (self.K + 2)))[:, None]
        taken: Floats = share * (self.V + nu)
        if not (taken <= MAX_NOISE_SHARE * nu).all():
            raise UnsuitedError("Some noise is as small as rounding.")
        with np.errstate(invalid="ignore"):
            entered = np.where(nu > 0, 1 + self.V / nu, 0.0).sum(axis=1)
        # The rounding of P_O'·x, of the shifts, and of their weights
        error = 12 * gamma(self.seen_rows + 16) * np.sqrt(self.reach * LESS_NOISE * entered)
        self.error += error[:, None, None] * self.reveals
        self.wrong = np.zeros_like(self.wrong)
        return taken

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
        rest = np.sqrt(LESS_NOISE * np.einsum("bk,bkow->bow", Q, self.S[..., :followed] ** 2))
        largest = np.sqrt(self._largest())[:, None, None]
        over = (rest > self.tolerated_rest / 2 * largest).any(axis=(0, 1))
        dropped = int(over.argmax()) if over.any() else followed
        if self.longest is not None:
            dropped = max(dropped, followed - self.longest)
        self.rest[:, :, self.low : self.low + dropped] = rest[:, :, :dropped]
        self._write(dropped)
        remaining = followed - dropped
        W = remaining + DROP_EVERY_ROUNDS
        S, G = np.zeros((self.B, k, self.owners, W)), np.zeros((self.B, self.owners, W, W))
        reveals, error = np.zeros((2, self.B, self.owners, W))
        reveals[..., :remaining] = 1.01 * rest[..., dropped:]
        error[..., :remaining] = self.error[..., dropped:followed]
        S[..., :remaining] = self.S[..., dropped:followed]
        G[..., :remaining, :remaining] = self.G[..., dropped:followed, dropped:followed]
        self.S, self.G, self.low, self.reveals, self.error = S, G, self.low + dropped, reveals, error
        self.error_before = error.copy()

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
        done = slice(self.low, self.low + dropped)
        rounding = self.error[..., :dropped]
        if not (self.error - self.error_before <= self.reveals).all():
            raise UnsuitedError("Some change is as small as rounding.")
        self.rounding[..., done] = rounding
        self.rest[..., done] += rounding


def _ranks(batch: Ints, size: int) -> tuple[Ints, int]:
    """Return the index of each entry within its question, and the largest number of entries of a question.

    `batch`: the question of each entry, in ascending order. `size`: the number of questions.
    """
    count = np.bincount(batch, minlength=size)
    return np.arange(len(batch)) - np.repeat(np.cumsum(count) - count, count), int(count.max(initial=0))
