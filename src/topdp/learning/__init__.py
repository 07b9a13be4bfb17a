"""Models as flat rows, losses, and per-example clipped gradients of all agents at once. Needs torch.

MKL rounds a matrix product by where its operands lie in memory, unless its mode for reproducible results is
on. topdp turns it on here, before the first product: an agent has the same bits whichever agents share its
process. MKL reads the variable once, so a value set by the user stays.
"""

import os

os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
