"""Algorithms 1 and 2 of the paper, executed line by line on vectors that stand for their terms.

The walks follow the pseudo-code, with the readings that docs/paper.md declares, and share no code with
`topdp.protocols`. The random choices are arguments. A walk raises AssertionError for choices that the
pseudo-code cannot make.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from topdp.base.array_types import Floats


@dataclass(frozen=True)
class Terms:
    """A vector for x_0, for each clipped gradient, and for each draw of noise.

    With unit vectors (`width` = 0), a sum of terms is the list of its coefficients. For long runs, random
    vectors of a given width take their place: two different sums are then equal with probability 0.
    """

    agents: int
    releases: int
    width: int = 0
    vectors: Floats = field(init=False)

    def __post_init__(self) -> None:
        size = 1 + self.releases * self.agents * (1 + self.agents)
        random = np.random.default_rng(0).normal(size=(size, self.width))
        object.__setattr__(self, "vectors", random if self.width else np.eye(size))

    @property
    def start(self) -> Floats:
        return np.asarray(self.vectors[0])

    def gradient(self, i: int, r: int) -> Floats:
        """The clipped gradient of agent i that enters release r."""
        return np.asarray(self.vectors[1 + r * self.agents + i])

    def noise(self, i: int, j: int, r: int) -> Floats:
        """The draw, of standard deviation 1, in x̃_i^j of release r; j = i for the estimate x̃_i."""
        n = self.agents
        return np.asarray(self.vectors[1 + self.releases * n + (r * n + i) * n + j])


@dataclass(frozen=True, kw_only=True)
class PaperInputs:
    """The inputs of both algorithms."""

    neighbours: Sequence[frozenset[int]]  # N_i
    sigma: Floats  # σ_0,i
    clip: float  # C
    alpha: float
    own_share: float  # docs/paper.md, Unequal budgets; 0 is Eq. 5b as printed
    reuses: bool = True  # whether received noise counts; False is Eq. 3, the rule of the baselines
    noise_on: str  # docs/paper.md, Where the noise stands
    rate: float  # the first λ
    fading: str
    rounds_per_epoch: int
    gamma: float
    period: int
    T: int

    @property
    def agents(self) -> range:
        return range(len(self.neighbours))

    def N_except(self, i: int, j: int) -> frozenset[int]:
        """N_i^j. The baselines cover nobody, and so send their estimate to all."""
        return self.neighbours[i] - ({j} | self.neighbours[j]) if self.reuses else frozenset()

    def step_size(self, t: int) -> float:
        """λ_t. docs/paper.md, Fading learning rate; `linear` is the default job's."""
        if self.fading == "sqrt-epoch":
            return self.rate / math.sqrt(1 + t // self.rounds_per_epoch)
        return self.rate * (1 - t / self.T) if self.fading == "linear" else self.rate

    def decay(self, sigma: float, t: int) -> float:
        """Eq. 6b."""
        return float(sigma * self.gamma ** (t // self.period))

    def reduced(self, sigma_i: float, sigma_k: float) -> float:
        """Eq. 5b; received noise counts as at most one's own, as far as `own_share` asks for it."""
        if not self.reuses:
            return sigma_i
        variance = sigma_i**2 - (1 - self.alpha) ** 2 * sigma_k**2
        least = self.own_share * math.sqrt(1 - (1 - self.alpha) ** 2) * sigma_i
        return max(math.sqrt(max(variance, 0.0)), least)

    def noise_std(self, sigma: float, t: int) -> float:
        """The standard deviation of G(σ²C²) in a row of iteration t; on gradients it is within the step."""
        return sigma * self.clip * (self.step_size(t) if self.noise_on == "gradient" else 1.0)


@dataclass
class PaperRelease:
    """What all agents hold and send in one release, and who covered whom."""

    estimates: dict[int, Floats]
    sent: dict[tuple[int, int], Floats]  # by sender and receiver
    serves: dict[tuple[int, int], int] = field(default_factory=dict)  # k, by i and j


@dataclass
class CoverChoices:
    """The choices of Algorithm 1 in one iteration."""

    orders: Mapping[int, Sequence[int]]  # the order in which i selects its k
    partners: Mapping[int, int]  # j*


@dataclass
class PairChoices:
    """The choices of Algorithm 2 in one iteration."""

    online: Collection[int]
    pairs: Sequence[tuple[int, int]]  # i asked j, in this order


def algorithm_1(p: PaperInputs, terms: Terms, choices: Sequence[CoverChoices]) -> Iterator[PaperRelease]:
    N, a = p.neighbours, p.alpha
    x = _first_estimates(p, terms)
    sent = {(i, j): x[i] for i in p.agents for j in N[i]}
    yield PaperRelease(x, sent)
    inbox: dict[tuple[int, int], Floats] = {}  # x̃_k^i: the last message of k to i
    for t, chosen in zip(range(p.T), choices, strict=True):
        r, rate = t + 1, p.step_size(t)
        inbox |= sent
        old, x, sent, serves = x, {}, {}, {}
        for i in p.agents:
            sigma_i = p.decay(p.sigma[i], t)
            gradient = terms.gradient(i, r)
            unserved, untried = set(N[i]), list(chosen.orders[i])
            assert set(untried) == N[i] and len(untried) == len(N[i])
            while unserved and untried:
                k = untried.pop(0)
                std = p.noise_std(p.reduced(sigma_i, p.decay(p.sigma[k], t)), t)
                for j in unserved & p.N_except(i, k):
                    noise = std * terms.noise(i, j, r)
                    sent[i, j] = a * old[i] + (1 - a) * inbox[k, i] - rate * gradient + noise
                    serves[i, j] = k
                unserved -= p.N_except(i, k)
            partner = chosen.partners[i]
            assert partner in N[i]
            noise = p.noise_std(sigma_i, t) * terms.noise(i, i, r)
            x[i] = a * old[i] + (1 - a) * inbox[partner, i] - rate * gradient + noise
            for j in unserved:
                sent[i, j] = x[i]
        yield PaperRelease(x, sent, serves)


def algorithm_2(
    p: PaperInputs, terms: Terms, choices: Sequence[PairChoices], rematch: str
) -> Iterator[PaperRelease]:
    a = p.alpha
    x = _first_estimates(p, terms)
    last: dict[int, int | None] = dict.fromkeys(p.agents)  # j_i^t
    for t, chosen in zip(range(p.T), choices, strict=True):
        r, rate = t + 1, p.step_size(t)
        partner = search(p.neighbours, last, chosen)
        yield PaperRelease(x, {(i, j): x[i] for i, j in partner.items()})
        old, x = x, {}
        for i in p.agents:
            sigma_i = p.decay(p.sigma[i], t)
            step = rate * terms.gradient(i, r)
            if i not in chosen.online:
                x[i] = old[i]
            elif i in partner:
                j = partner[i]
                std = p.noise_std(p.reduced(sigma_i, p.decay(p.sigma[j], t)), t)
                x[i] = a * old[i] + (1 - a) * old[j] - step + std * terms.noise(i, i, r)
            else:
                x[i] = old[i] - step + p.noise_std(sigma_i, t) * terms.noise(i, i, r)
            if i in chosen.online or rematch == "next-round":
                last[i] = partner.get(i)
    yield PaperRelease(x, {})


def search(
    neighbours: Sequence[frozenset[int]], last: Mapping[int, int | None], chosen: PairChoices
) -> dict[int, int]:
    """Return the partner of each agent that found one.

    Agents that end alone ask after all others: each of their neighbours must be unavailable by then.
    """
    partner: dict[int, int] = {}

    def available(i: int, j: int) -> bool:
        """Whether j answers yes to i: j looks for a partner too, and i was not j's partner before."""
        return j in chosen.online and j not in partner and last[j] != i

    for i, j in chosen.pairs:
        assert i in chosen.online and i not in partner, f"{i} does not search"
        assert j in neighbours[i] - {last[i]}, f"{i} must not ask {j}"
        assert available(i, j), f"{j} does not accept {i}"
        partner[i], partner[j] = j, i
    for i in set(chosen.online) - partner.keys():
        left = {j for j in neighbours[i] - {last[i]} if available(i, j)}
        assert not left, f"{i} stays alone, although {left} are available"
    return partner


def _first_estimates(p: PaperInputs, terms: Terms) -> dict[int, Floats]:
    """The estimates before the loop."""
    return {
        i: terms.start
        - p.step_size(0) * terms.gradient(i, 0)
        + p.noise_std(p.sigma[i], 0) * terms.noise(i, i, 0)
        for i in p.agents
    }
