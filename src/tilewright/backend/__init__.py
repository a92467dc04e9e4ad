"""Code generators, from kernels and tile programs to machine code. Start with ``backend.cpu``."""
