"""Thousands of linear reactions of gradients against what `adaptive` says: is it ever exceeded?

    python benchmarks/reactions.py [--seeds 20] [--first 0]

A seed is 252 reactions: small plans of nine graph families and seven protocols, four kinds of reactions each
(tests/privacy/observers/linear_reactions.py), exact with 60 digits. Printed are, for each protocol and kind,
the largest share of `adaptive` that an observer reached, and the largest multiple of `view`. Ends with code 1
if a share is above 1, or if an observer who sees all estimates learns more through reactions than without.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "privacy" / "observers")]

from linear_reactions import FAMILIES, KINDS, judge, random_case  # noqa: E402

from builders import PROTOCOLS  # noqa: E402

ROUNDING = 1e-9


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seeds", type=int, default=20)
    arguments.add_argument("--first", type=int, default=0)
    asked = arguments.parse_args()
    broken, count = 0, 0
    for protocol, kind in product(PROTOCOLS, KINDS):
        share = multiple = 0.0
        for family, seed in product(FAMILIES, range(asked.first, asked.first + asked.seeds)):
            found = judge(random_case(family, protocol, kind, seed))
            share, multiple, count = max(share, found.ratio), max(multiple, found.view), count + 1
            if max(found.ratio - 1, found.excess, found.moved) > ROUNDING:
                broken += 1
                print(f"above the bound: {family} {protocol} {kind} seed {seed}: {found}")
        print(f"{protocol:12} {kind:8} {share:.4f} of adaptive, {multiple:.3f} times the view", flush=True)
    print(f"{count} reactions, {broken} above the bound")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
