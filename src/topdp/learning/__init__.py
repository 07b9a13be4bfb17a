"""Models as flat rows, losses, and clipped per-example gradients of all agents at once. Needs torch.

MKL rounds a matrix product differently depending on where its operands lie in memory, unless its mode for
reproducible results is on. topdp turns that mode on here, before the first product: an agent's results are
the same bit for bit whichever agents share its process. MKL reads the variable once. A value set by the user
is kept.
"""

import os

os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
