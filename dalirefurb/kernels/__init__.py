"""Kernels for the CPU, compiled by Numba: the stages without DALI's operators.

All steps of a part are taken for one image after the other, and a batch is shared out among threads, whatever its
size. The parameters are those that DALI's operators would get. How near the pixels are: see `lower`.
"""

VERSION = 3
"""Raised when kernels come to make other pixels."""
