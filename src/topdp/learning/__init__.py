"""Models as flat rows, losses, and clipped per-example gradients of all agents at once. Needs torch.

MKL rounds a matrix product differently depending on where its operands lie in memory, unless its mode for
reproducible results is on. With that mode, an agent's results are the same bit for bit whichever agents share
its process. This module turns the mode on with an environment variable, unless the user has set the variable.
MKL reads the variable only once, so it must be set before the first product.
"""

import os

os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
