"""Package 5: which primitives one kernel computes.

``greedy`` is the planner: backbone first, then what can be evaluated around each backbone.
``backbones`` says what seeds a kernel, ``inline`` which nodes may be recomputed where they are
used. May import ``support``, ``shape`` and ``ir``. Start with ``greedy``.
"""
