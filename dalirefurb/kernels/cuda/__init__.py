"""The kernels once more, as CUDA C++: what a GPU does to the arrays that a `KernelProgram` lays out, bit for bit.

One text is compiled for a GPU by NVRTC, and for a processor by a C++ compiler; so that it makes the same images as the
kernels of `dalirefurb.kernels.pixels` is tested where there is no GPU. A kernel is a struct of the same name, in a file
of the same name. No GPU has run them yet.
"""
