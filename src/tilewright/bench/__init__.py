"""Comparison with peers.

Times a compiled model beside ONNX Runtime, OpenVINO and PyTorch in one run, fairly, and says how
far the figures can be trusted. May import every lower package, numpy, onnx and rich; each peer is
imported only by its own module in ``peers``, and only when it is asked for. Start with ``compare``
(the whole of it), then ``measure`` (the alternation), ``clock`` (when times can be
compared), ``report`` (results, JSON, table), ``inputs`` (shapes and random inputs). Single
operators in suites: ``suites`` and ``operators`` (contractions), ``tables`` and ``table_reference``
(models that come along), ``operator_run``, ``operator_report``. What the machine allows at least:
``roofline``.
What choices between variants cost: ``regret_cases``, ``regret``, ``regret_report``, ``variants``.
"""

from tilewright.bench.arrays import read_arrays, read_constants
from tilewright.bench.compare import compare
from tilewright.bench.contender import Contender, ModelContender, as_arrays
from tilewright.bench.inputs import (
    InputSpecification,
    ModelInputs,
    model_inputs,
    parse_sizes,
    parse_suite,
    random_inputs,
)
from tilewright.bench.measure import Settings, Spread
from tilewright.bench.peers import PEERS, PeerOptions, create_peer, create_peers
from tilewright.bench.report import Failure, Report, Row, Timing, render_table
from tilewright.bench.shapes import check_sizes

__all__ = [
    "PEERS",
    "Contender",
    "Failure",
    "InputSpecification",
    "ModelContender",
    "ModelInputs",
    "PeerOptions",
    "Report",
    "Row",
    "Settings",
    "Spread",
    "Timing",
    "as_arrays",
    "check_sizes",
    "compare",
    "create_peer",
    "create_peers",
    "model_inputs",
    "parse_sizes",
    "parse_suite",
    "random_inputs",
    "read_arrays",
    "read_constants",
    "render_table",
]
