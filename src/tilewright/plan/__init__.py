"""Which primitives one kernel computes.

``greedy`` is the planner: seeds first, then what can be evaluated around each of them. ``seeds``
says what seeds a kernel, ``legality`` which kernels can be lowered, and ``inline`` which nodes may
be recomputed where they are used. May import ``support``, ``shape`` and ``ir``. Start with
``greedy``.
"""
