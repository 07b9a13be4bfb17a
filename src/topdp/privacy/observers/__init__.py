"""What somebody who reads rows learns about somebody else's records.

Everyone else together (`worst_case`), or one agent or coalition (`view`, `coalitions`), for which the rows of
all rounds are one Gaussian vector: `filtering` carries what is not known, `gram` and `banded` what a change
adds to it, `bounds` and `band_bounds` how far the worst record can go.
"""
