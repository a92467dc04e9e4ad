"""The demo: one real sentence encoder, compiled once, run at every batch size and length.

Builds all-MiniLM-L6-v2 from its published weights, compiles it, saves and loads the artifact,
embeds a page of sentences at many shapes, checks every embedding against ONNX Runtime, prints which
sentences of the page mean the same, times both fairly, and says last whether all was right and how
fast. Run it with `make demo`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from build_minilm import build_model, encode, load_tokenizer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer

import tilewright as tw
from tilewright.bench import (
    ModelContender,
    PeerOptions,
    Report,
    Settings,
    as_arrays,
    compare,
    create_peer,
    render_table,
)
from tilewright.bench.contender import Contender, Inputs
from tilewright.support.processors import default_threads
from tilewright.support.text import format_count

HERE = Path(__file__).parent
BATCHES = (1, 2, 3, 5, 8, 17, 32, 64)
# How many sentences to take at once, from where on the page: short, long and mixed ones.
CASES = ((1, "short"), (1, "middle"), (1, "long"), (4, "mixed"), (7, "short"), (16, "mixed"))
# Embeddings have length one; f32 errors of six layers stay well below this.
TOLERANCE = 1e-4


def build(folder: Path, console: Console) -> tuple[tw.Model, Path, Path]:
    """Write the ONNX model, compile it, save it, and load it back; the loaded model is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    source, artifact = folder / "minilm.onnx", folder / "minilm.tw"
    onnx.save(build_model(), source)
    started = time.perf_counter()
    compiled = tw.compile(source, dims={"batch": tw.Dim(0, 64), "sequence": tw.Dim(0, 512)})
    seconds = time.perf_counter() - started
    compiled.save(artifact)
    started = time.perf_counter()
    model = tw.load(artifact)
    milliseconds = 1000 * (time.perf_counter() - started)
    size = artifact.stat().st_size / 2**20
    console.print(
        f"Compiled once for batch 0–64 and sequence 0–512 in [bold]{seconds:.1f} s[/]; "
        f"the artifact of {size:.0f} MiB loads in [bold]{milliseconds:.0f} ms[/]."
    )
    return model, source, artifact


def check(
    model: tw.Model, reference: Contender, tokenizer: Tokenizer, page: Sequence[str]
) -> tuple[int, float]:
    """Embed the page in batches of many sizes; how many shapes that were, and the worst error."""
    shapes: set[tuple[int, ...]] = set()
    worst = 0.0
    for batch in BATCHES:
        for start in range(0, len(page), batch):
            inputs = encode(tokenizer, page[start : start + batch])
            shape = inputs["input_ids"].shape
            if shape in shapes:
                continue
            shapes.add(shape)
            (actual,), (expected,) = as_arrays(model(**inputs)), reference.outputs(inputs)
            worst = max(worst, float(np.abs(actual - expected).max()))
    return len(shapes), worst


def choose(page: Sequence[str], count: int, kind: str) -> list[str]:
    """`count` sentences of the page: the shortest, the longest, those in the middle, or a mix."""
    ordered = sorted(page, key=len)
    if kind == "mixed":
        return list(page[:count])
    start = {"short": 0, "middle": len(page) // 2, "long": len(page) - count}[kind]
    return ordered[start : start + count]


def time_both(
    model: tw.Model,
    artifact: Path,
    reference: Contender,
    tokenizer: Tokenizer,
    page: Sequence[str],
    settings: Settings,
    console: Console,
) -> Report:
    """Time the model beside ONNX Runtime at several shapes."""
    cases: list[dict[str, int]] = []
    inputs: list[Inputs] = []
    for count, kind in CASES:
        values = encode(tokenizer, choose(page, count, kind))
        batch, sequence = values["input_ids"].shape
        cases.append({"batch": batch, "sequence": sequence})
        inputs.append(values)

    def inputs_of(case: Mapping[str, int]) -> Inputs:
        return inputs[cases.index(dict(case))]

    def load_again() -> tw.Model:
        return tw.load(artifact)

    with console.status("Timing") as status:

        def show(done: int, total: int, case: str) -> None:
            status.update(f"Timing {case} ({done + 1} of {total})")

        return compare(
            ModelContender(model, load_again),
            [reference],
            cases,
            inputs_of,
            threads=default_threads(),
            settings=settings,
            progress=show,
        )


def result_of(report: Report, shapes: int, sentences: int, worst: float) -> Text:
    """What the demo found, in two sentences: whether it is right, and how fast."""
    is_right = worst <= TOLERANCE
    found = "Right" if is_right else "WRONG"
    text = Text(
        f"{found} at {shapes} different shapes: {sentences} sentences, largest difference from "
        f"ONNX Runtime {worst:.1e} (allowed: {TOLERANCE:.0e}). ",
        style="bold green" if is_right else "bold red",
    )
    mean = report.geometric_mean()
    if mean is None:
        return text.append("ONNX Runtime could not be timed", style="bold yellow")
    cases = format_count(len(report.rows), "shape")
    speed = f"{mean:.2f} times the speed of ONNX Runtime over {cases}"
    if report.is_quiet:
        return text.append(f"{speed[0].upper()}{speed[1:]}", style="bold")
    apart = max(abs(row.self_ratio.median - 1) for row in report.rows)
    busy = f"The machine is busy (equal calls differ by up to {apart:.0%}): roughly {speed}"
    return text.append(busy, style="bold")


def print_similar(
    model: tw.Model, tokenizer: Tokenizer, page: Sequence[str], count: int, console: Console
) -> None:
    """Print the `count` most similar pairs of sentences."""
    parts = [
        as_arrays(model(**encode(tokenizer, page[start : start + 64])))[0]
        for start in range(0, len(page), 64)
    ]
    embeddings = np.concatenate(parts)
    first, second = np.triu_indices(len(page), k=1)
    similarity = np.einsum("ij,ij->i", embeddings[first], embeddings[second])
    table = Table(title=f"The {count} closest pairs on the page", title_style="bold")
    table.add_column("similarity", justify="right")
    table.add_column("sentence", ratio=1)
    table.add_column("sentence", ratio=1)
    for pair in np.argsort(-similarity, kind="stable")[:count]:
        value = float(similarity[pair])
        style = "green" if value >= 0.7 else "yellow"
        table.add_row(Text(f"{value:.2f}", style=style), page[first[pair]], page[second[pair]])
    console.print(table)


def main() -> None:
    """Run the demo; exit with 1 if any embedding differs from ONNX Runtime's."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("models"), help="folder")
    parser.add_argument("--rounds", type=int, default=Settings.rounds, help="rounds of timing")
    parser.add_argument("--pairs", type=int, default=12, help="pairs to print")
    arguments = parser.parse_args()
    settings = Settings(rounds=arguments.rounds, most_rounds=4 * arguments.rounds)
    console = Console()
    page = (HERE / "sentences.txt").read_text(encoding="utf-8").split("\n")
    page = [sentence for sentence in page if sentence]
    tokenizer = load_tokenizer()
    model, source, artifact = build(arguments.output, console)
    reference = create_peer("onnxruntime", source, PeerOptions(default_threads()))
    shapes, worst = check(model, reference, tokenizer, page)
    is_right = worst <= TOLERANCE
    print_similar(model, tokenizer, page, arguments.pairs, console)
    report = time_both(model, artifact, reference, tokenizer, page, settings, console)
    console.print(render_table(report, title="One artifact, any shape"), "")
    console.print(result_of(report, shapes, len(page), worst))
    if not is_right:
        raise SystemExit(f"The embeddings differ by {worst:.1e}, more than {TOLERANCE:.0e}.")


if __name__ == "__main__":
    main()
