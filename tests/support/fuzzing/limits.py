"""What is known and not a finding: documented limits of the compiler, and errors of the oracles.

Each entry has its reason. An entry that no longer holds is to go.
"""

from __future__ import annotations

import re

import onnx

# Refusals that are right though both oracles answer: a pattern of the message, and why.
LIMITS: tuple[tuple[str, str], ...] = ()

# Operators by which an oracle is known to be wrong, and why; it does not count for such a model.
REFERENCE_ERRORS: tuple[tuple[str, str], ...] = ()


def limit(message: str) -> str | None:
    """Why a refusal with this message is no finding; None if it is one."""
    return next((why for pattern, why in LIMITS if re.search(pattern, message)), None)


def doubts_reference(model: onnx.ModelProto) -> bool:
    """Whether the ONNX reference evaluator is known to be wrong for an operator of the model."""
    known = {name for name, _ in REFERENCE_ERRORS}
    return any(node.op_type in known for node in model.graph.node)
