"""The kernels: what each stage or operation does to the pixels of one image, a family a module."""
