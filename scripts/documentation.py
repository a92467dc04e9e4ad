"""Make the pages that are not written by hand, and give them to mkdocs.

    python scripts/documentation.py operators -o docs/operators.md

`docs/operators.md` is kept in the repository and a test holds it against the rules. As a hook of
mkdocs (`mkdocs build`) this module also makes two pages of the site from files that stand
elsewhere: the home page from README.md, and the architecture from ARCHITECTURE.md.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx

from tilewright.frontend.onnx.legacy import OLDEST_RULES
from tilewright.ops.contributed import DOMAIN
from tilewright.ops.record import OPERATORS
from tilewright.ops.schema import find_schema
from tilewright.runtime.built_in import ATTRIBUTES

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"index.md": "README.md", "architecture.md": "ARCHITECTURE.md"}
DOMAINS = {"": "ONNX", "ai.onnx.ml": "ONNX-ML"}
FILLED_IN = "…"  # a part of a message that is known only for a node
UNKNOWN_ELEMENTS = (
    "the sequence is neither of known elements, nor parts of a tensor, nor what a loop appends, "
    "all of one shape"
)
UNKNOWN_NUMBER = "the number of elements or the position is known in a call only, or it is outside"
NEEDED = "the sequence is needed as a whole: a result, say"
# The importer runs these itself: constants are read, bodies are models of their own, and sequences
# are taken apart.
IMPORTED = {
    "Constant": "",
    "If": "a branch handles sequences, optionals or strings",
    "Loop": (
        "the body handles optionals, strings, or sequences in another way than to append to them "
        "or to read what is known before"
    ),
    "Scan": "the body handles sequences, optionals or strings, or the opset is below 9",
    "ConcatFromSequence": f"{UNKNOWN_ELEMENTS}; long parts are joined along another axis",
    "SequenceAt": f"{UNKNOWN_ELEMENTS}; elements differ in shape and the position is not known",
    "SequenceConstruct": NEEDED,
    "SequenceEmpty": NEEDED,
    "SequenceErase": f"{UNKNOWN_NUMBER}; {NEEDED}",
    "SequenceInsert": f"{UNKNOWN_NUMBER}, outside of a loop; {NEEDED}",
    "SequenceLength": UNKNOWN_ELEMENTS,
    "SequenceMap": f"{UNKNOWN_ELEMENTS}; its results differ in shape; {NEEDED}",
    "SplitToSequence": f"the length of all parts is known in a call only; {NEEDED}",
}

INTRODUCTION = """\
How every operator of ONNX (opset {newest}) is executed. *Compiled* means that a rule splits it into
primitives; *by its definition* that ONNX defines it by other operators, which are compiled;
*in the runtime* that the runtime computes it itself, in C++, as it finds out how large its results
are, or sorts; *reference evaluator* that it runs in Python on the ONNX reference evaluator: right,
but slow, unless all its operands are constants: then it runs when compiling. So does every operator
on strings and, but for constant weights, on floats of 8 and numbers of 4 bits and less. The last
column quotes the reasons for which a rule leaves a form of its operator to the reference evaluator.
`tilewright inspect MODEL` tells for each node of a model what happens to it, and why. Models of
opsets below {oldest} are lifted to it first.
"""


DISPUTED = """\
Results are those of ONNX's definitions and of its reference evaluator. Other engines differ from
these, and so from tilewright, in some corners:

- `Resize` by a scale with the coordinates `align_corners`, where the scaled length is no whole
  number: the reference and ONNX's own test data divide by that fractional length less one, ONNX
  Runtime and OpenVINO by the whole length of the result less one, so that its last element is the
  last one of the data. Sizes in the place of scales give the same in all of them.
- `TopK` of data that hold NaNs: a NaN is the greatest element, as in numpy, for any number of
  wanted elements. What ONNX Runtime gives depends on where it stands.
- `Normalizer` by the largest element: rows are divided by their largest absolute value, as by the
  reference and scikit-learn; ONNX Runtime takes the largest value with its sign.
- `LinearClassifier` with one score for two classes, which nothing transforms: the other class has
  its negative, as in the reference; ONNX Runtime gives what it lacks to 1.
- `GridSample` by cubic interpolation with `padding_mode="border"`: of each neighbour outside, the
  nearest element inside is taken, as by PyTorch and ONNX Runtime; the reference moves the position.
- `MaxUnpool` with an `output_shape`: positions count in the tensor that the attributes give, as in
  the reference and ONNX's own test data; in ONNX Runtime they count in the one of that shape.
"""


CONTRIBUTED = """\
Operators that ONNX Runtime and its tools put into models, as its own domain `com.microsoft` or
beside those of ONNX. ONNX has no reference for them: a form that the last column names is refused.
Quantised ones give the bytes that ONNX Runtime gives; of values that lie half way between two bytes
but for their last bits, either. The weights of `MatMulNBits` stay whole numbers of 4 or 8 bits
(see [Quantised models](python.md#quantised-models)). `GroupQueryAttention` demands
in a call that the keys and values of before fill their buffer in every row of the batch.
"""


def operator_table() -> str:
    """The page of operators: how each operator of the installed onnx is executed."""
    newest = onnx.defs.onnx_opset_version()
    names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == "" and not s.deprecated}
    keys = [("", name) for name in sorted(names)]
    more = sorted(key for key in OPERATORS if key[0] not in ("", DOMAIN))
    lines = [
        "# Operators",
        "",
        "<!-- Made by scripts/documentation.py: change that, not this. -->",
        "",
        *INTRODUCTION.format(newest=newest, oldest=OLDEST_RULES).splitlines(),
        "",
        "| operator | domain | executed | not compiled where |",
        "|---|---|---|---|",
    ]
    for domain, name in keys + more:
        how, limits = _executed(domain, name, newest)
        lines.append(f"| {name} | {DOMAINS.get(domain, domain)} | {how} | {limits} |")
    lines += ["", "## Where engines differ", "", *DISPUTED.splitlines()]
    lines += ["", "## Operators of ONNX Runtime", "", *CONTRIBUTED.splitlines(), ""]
    lines += ["| operator | not compiled where |", "|---|---|"]
    for name in sorted(name for domain, name in OPERATORS if domain == DOMAIN):
        lines.append(f"| {name} | {_executed(DOMAIN, name, newest)[1]} |")
    return "\n".join([*lines, ""])


def _executed(domain: str, name: str, newest: int) -> tuple[str, str]:
    """How an operator is executed, and what its rule refuses."""
    rows = OPERATORS.get((domain, name))
    if domain == "" and name in ATTRIBUTES:
        return "compiled, or in the runtime" if rows else "in the runtime", ""
    if rows:
        return "compiled", "; ".join(dict.fromkeys(_refusals(rows[-1].rule)))
    if name in IMPORTED:
        return "compiled", IMPORTED[name]
    schema: Any = find_schema("", name, newest)
    if schema.has_function or schema.has_context_dependent_function:
        return "by its definition", ""
    return "reference evaluator", ""


def _refusals(rule: Callable[..., Any]) -> Iterator[str]:
    """The messages of every ``NoRule`` in a rule and in what it calls of its own module."""
    module = inspect.getmodule(rule)
    waiting, seen = [rule], set[Any]()
    while waiting:
        function = waiting.pop(0)
        if function in seen:
            continue
        seen.add(function)
        for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            if call.func.id == "NoRule":
                words = _words(call.args[0])
                yield "some forms" if words == FILLED_IN else words
                continue
            called = getattr(module, call.func.id, None)
            if inspect.isfunction(called) and called.__module__ == rule.__module__:
                waiting.append(called)


def _words(message: ast.expr) -> str:
    """The text of a message; an ellipsis for what it fills in."""
    match message:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_words(part) for part in parts)
        case _:
            return FILLED_IN


def on_files(files: Any, config: Any) -> Any:
    """A hook of mkdocs: add the pages whose text stands elsewhere in the repository."""
    from mkdocs.structure.files import File

    for page, source in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=relinked(text)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A hook of mkdocs: links from `docs` to files at the root lead to the pages made of these."""
    for page, source in PAGES.items():
        markdown = re.sub(rf"\]\(\.\./{re.escape(source)}(?=[#)])", f"]({page}", markdown)
    return markdown


def relinked(text: str) -> str:
    """Links of a file at the root of the repository, as a page among `docs` needs them."""

    def moved(match: re.Match[str]) -> str:
        target = match[1]
        for page, source in PAGES.items():
            target = page if target == source else target
        return f"]({target.removeprefix('docs/')})"

    text = re.sub(r"\]\((?!https?:)([^)]+)\)", moved, text)
    # Files that are no page of the site stay as plain words.
    return re.sub(r"(?<!!)\[([^\]]+)\]\((?:CONTRIBUTING\.md|CHANGELOG\.md|LICENSE)\)", r"\1", text)


def main() -> None:
    """Write one generated page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page", choices=("operators",))
    parser.add_argument("-o", "--output", type=Path, required=True, help="the file to write")
    arguments = parser.parse_args()
    arguments.output.write_text(operator_table(), encoding="utf-8")


if __name__ == "__main__":
    main()
