"""The CPU code generator, on LLVM.

``machine`` names the instruction set levels and compiles LLVM modules for them, ``emitter`` writes
typed scalar or vector arithmetic into a module, ``math`` and its siblings hold the elementary
functions, and ``convert`` the changes of element type. Start with ``emitter.Emitter``.
"""
