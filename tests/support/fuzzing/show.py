"""A case as a test that is ready to be kept. Start with :func:`as_test`."""

from __future__ import annotations

import base64
import textwrap

import numpy as np
import onnx
from onnx import numpy_helper, parser, printer

from .case import Array, Case, Finding, Sizes

MOST_NUMBERS = 300  # an input of more is printed as its recipe

_TEST = '''\
def test_{name}() -> None:
    """{title}"""
{model}
{options}
{calls}
'''


def as_test(case: Case, finding: Finding, name: str) -> str:
    """A function for pytest that fails as long as the finding stands."""
    sizes = finding.sizes or case.shapes[0]
    shapes = [finding.sizes] if finding.sizes is not None else list(case.shapes)
    options = f"    compiled = tw.compile(model, dims={case.ranges!r}, levels=[{case.level!r}]"
    options += f", plan={case.plan!r}" if case.plan != "greedy" else ""
    options += ", check=True)" if case.check else ")"
    calls = [f"    compiled.num_threads = {case.threads[0]}"] if len(case.threads) == 1 else []
    for one in shapes:
        calls += _call(case, one)
    calls.append(f"    # {len(case.shapes)} shapes were tried: {list(case.shapes)}")
    calls.append(f"    # inputs: {case.recipes}; seed {case.seed}; fails at {sizes}")
    return _TEST.format(
        name=name,
        title=finding.title.replace('"', "'").replace("\\", "/"),
        model=textwrap.indent(_model(case), "    "),
        options=options,
        calls="\n".join(calls),
    )


def _call(case: Case, sizes: Sizes) -> list[str]:
    lines = ["    feeds = {"]
    for name, array in case.feeds(sizes).items():
        lines.append(f"        {name!r}: {_literal(array)},")
    lines.append("    }")
    lines.append("    results = compiled.run(feeds)")
    lines.append("    expected = ReferenceEvaluator(model).run(None, feeds)")
    lines.append("    for ours, theirs in zip(results.values(), expected, strict=True):")
    lines.append("        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)")
    return lines


def _literal(array: Array) -> str:
    if array.size <= MOST_NUMBERS:
        kept = [x.item() for x in array.reshape(-1)]
        numbers = ", ".join(f"{x:.9g}" if isinstance(x, float) else repr(x) for x in kept)
        return f"np.array([{numbers}], np.{_name(array.dtype)}).reshape({array.shape})"
    if array.dtype.kind == "f":
        return f"np.random.default_rng(0).standard_normal({array.shape}).astype(np.{array.dtype})"
    low, high = int(array.min()), int(array.max()) + 1
    return (
        f"np.random.default_rng(0).integers({low}, {high}, {array.shape}).astype(np.{array.dtype})"
    )


def _name(dtype: np.dtype) -> str:
    return "bool_" if dtype.kind == "b" else dtype.name


def _model(case: Case) -> str:
    """The model as text of onnx.parser if that gives the same model, otherwise as its bytes."""
    proto = case.proto()
    for output in proto.graph.output:  # the parser reads no unknown sizes
        for axis, dim in enumerate(output.type.tensor_type.shape.dim):
            dim.dim_param = f"{output.name}_{axis}"
    text = printer.to_text(proto)
    try:
        is_whole = _same(parser.parse_model(text), proto)
    except Exception:  # the parser does not read all that the printer writes
        is_whole = False
    if is_whole:
        return f'model = parser.parse_model("""{text}""")'
    data = base64.b64encode(case.model).decode()
    quoted = textwrap.fill(data, 96, break_on_hyphens=False)
    note = textwrap.indent(text, "# ")
    return f'{note}\nmodel = onnx.load_model_from_string(base64.b64decode("""\n{quoted}"""))'


def _same(read: onnx.ModelProto, written: onnx.ModelProto) -> bool:
    """Whether both print alike and their constants have the same bits."""
    if printer.to_text(read) != printer.to_text(written):
        return False
    ours = {c.name: numpy_helper.to_array(c) for c in read.graph.initializer}
    theirs = {c.name: numpy_helper.to_array(c) for c in written.graph.initializer}
    return ours.keys() == theirs.keys() and all(
        ours[n].dtype == a.dtype and ours[n].shape == a.shape and ours[n].tobytes() == a.tobytes()
        for n, a in theirs.items()
    )
