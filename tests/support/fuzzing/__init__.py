"""A differential fuzzer of random ONNX graphs; its command is ``scripts/fuzz_graphs.py``.

:mod:`generate` makes a :class:`case.Case` of a seed and a number, :mod:`check` compiles it and
compares it with two oracles, :mod:`pool` does so in child processes with limits, :mod:`shrink`
makes a failing case smaller and :mod:`show` prints it as a test.
"""
