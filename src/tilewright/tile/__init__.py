"""Kernels become tile programs.

``lowering`` turns primitives into scalar values, ``loops``, ``rows``, ``windows`` and
``contraction`` build the loops of each kind of kernel, ``lower`` chooses among them. May import
``support``, ``shape`` and ``ir``. Start with ``lower``.
"""
