"""Export the models under test to ONNX, from modules with random weights.

    python scripts/export_models.py bert-base resnet-50 -o models

Every model goes through `torch.onnx.export(dynamo=True)` with unbounded dynamic dimensions and the
attention that users get by default (scaled dot product), and is then run in ONNX Runtime at several
shapes and compared with PyTorch. What comes out, with PyTorch 2.13:

    model            dynamic             notes
    bert-2l          batch sequence      two layers of bert-base, for quick tests
    bert-base        batch sequence      attention as MatMul, Softmax, IsNaN + Where
    bert-large       batch sequence      24 layers of 1,024 features: 1.3 GB
    gpt2             batch sequence      no cache; dense layers as Gemm around Reshape
    albert-base      batch sequence      one layer's weights used twelve times
    albert-large     batch sequence      one layer's weights used twenty-four times
    vit-b16          batch height width  position embedding through a cubic Resize
    resnet-18        batch height width  two 3x3 convolutions in each block
    resnet-50        batch height width  batch normalisation is folded into Conv
    mobilenet-v2     batch height width  symmetric padding (TensorFlow's bakes sizes in)
    segformer-b0     batch height width  linear Resize to sizes of other tensors
    efficientnet-b0  batch height width  depthwise convolutions of 3x3 and 5x5, gates of channels
    regnet-y         batch height width  convolutions in groups, gates of channels
    poolformer-s12   batch height width  average pooling and GroupNorm of one group
    mobilevit-v2     batch height width  attention with one score for each pixel
    efficientvit-b1  batch height width  attention that is linear in the pixels
    yolox-nano       batch height width  a detector of depthwise convolutions; multiples of 32
    yolov4           batch height width  a detector of 64 million weights; multiples of 32
    unet             batch height width  GroupNorm and SiLU before each convolution, joined levels
    candy            batch height width  InstanceNorm, mirrored borders
    whisper-tiny     batch               the encoder: 3,000 frames, attention over 1,500 positions
    wav2vec2         batch samples       convolutions along time, twelve layers of attention
    googlenet        batch height width  5x5 branches, pooling that rounds sizes up
    alexnet          batch               response normalisation as AveragePool and Pow
    vgg-16           batch               half a gigabyte, nearly all in one dense layer

`googlenet-narrow`, `alexnet-narrow` and `vgg-16-narrow` have an eighth of the channels and only
`batch` dynamic, `segformer-short` has half the layers, `gpt2-2l` and `vit-2l` have two layers; they
are for quick tests.

A file that exists is kept unless `--force` is given. The metadata entry `tilewright.factory` names
the module in `tilewright.bench.torch_models` that the file was made from.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch

from tilewright.bench.torch_models import NAMES, TorchModel, build

SAMPLE = {"batch": 2, "sequence": 7, "height": 224, "width": 192, "samples": 8000}
SHAPES = (
    {"batch": 2, "sequence": 7, "height": 224, "width": 224, "samples": 4000},
    {"batch": 1, "sequence": 1, "height": 32, "width": 32, "samples": 400},
    {"batch": 1, "sequence": 33, "height": 97, "width": 161, "samples": 16001},
    {"batch": 3, "sequence": 128, "height": 65, "width": 384, "samples": 1499},
)
# MobileViT cuts the last image, a 32nd of the first, into patches of 2x2.
LEAST = {"mobilevit-v2": 64}
# The exporter cannot prove a declared range through pooling that rounds up or a computed padding,
# only assume one.
ASSUMED = ("googlenet", "efficientnet-b0", "yolox-nano", "yolov4")


def export(model: TorchModel, path: Path) -> None:
    """Write `model` to `path` as one ONNX file with its dimensions named and nothing baked in."""
    dimensions = {name: torch.export.Dim(name, min=1, max=1 << 16) for name in SAMPLE}
    assumed = model.name in ASSUMED
    axes = {axis: name if assumed else dimensions[name] for axis, name in model.axes.items()}
    with torch.inference_mode():
        program = torch.onnx.export(
            model.module,
            model.inputs(SAMPLE),
            dynamo=True,
            dynamic_shapes=tuple(axes for _ in model.input_names),
            input_names=list(model.input_names),
            output_names=[model.output_name],
            verbose=False,
        )
    assert program is not None
    program.model.metadata_props["tilewright.factory"] = model.name
    program.save(str(path), external_data=False)


def largest_difference(model: TorchModel, path: Path) -> float:
    """Run the file in ONNX Runtime at several shapes; the largest difference from PyTorch.

    Relative to the largest magnitude of PyTorch's output at that shape.
    """
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for shape in SHAPES:
        least = LEAST.get(model.name, 1)
        inputs = model.inputs({name: max(size, least) for name, size in shape.items()})
        with torch.inference_mode():
            expected = model.module(*inputs).numpy()
        feeds = {n: t.numpy() for n, t in zip(model.input_names, inputs, strict=True)}
        (actual,) = session.run(None, feeds)
        difference = np.abs(np.asarray(actual) - expected).max() / np.abs(expected).max()
        worst = max(worst, float(difference))
    return worst


def operators(path: Path) -> str:
    """The operator types of the file and how often each is used, as one line."""
    counts = Counter(node.op_type for node in onnx.load(path).graph.node)
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))


def main() -> None:
    """Export the models named on the command line, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"of {', '.join(NAMES)}")
    parser.add_argument("-o", "--output", type=Path, default=Path("models"), help="folder")
    parser.add_argument("--force", action="store_true", help="write files that exist anew")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"no model called {', '.join(unknown)}; there are {', '.join(NAMES)}")
    warnings.filterwarnings("ignore")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    # Inequalities that PyTorch cannot solve are kept as assumptions; it prints pages about each.
    logging.getLogger("torch.fx.experimental.symbolic_shapes").setLevel(logging.ERROR)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or NAMES:
        path = arguments.output / f"{name}.onnx"
        if path.exists() and not arguments.force:
            print(f"{name}: {path} exists")
            continue
        started = time.perf_counter()
        model = build(name)
        unfinished = path.with_suffix(".onnx.part")
        export(model, unfinished)
        difference = largest_difference(model, unfinished)
        if not difference < 1e-3:
            parser.exit(1, f"{name}: ONNX Runtime differs from PyTorch by {difference:.1e}\n")
        unfinished.replace(path)
        seconds = time.perf_counter() - started
        print(f"{name}: {path} in {seconds:.0f} s, differs from PyTorch by {difference:.1e}")
        print(f"  {operators(path)}", flush=True)


if __name__ == "__main__":
    main()
