"""Change bytes of models and artifacts at random, and see that only our own errors come out.

    python scripts/fuzz.py --seconds 60
    python scripts/fuzz.py --target artifact --seed 17 --seconds 600

Each change is tried in a worker process: errors other than `TilewrightError`, crashes and hangs are
findings. Models are changed as bytes and as messages (names, sizes, attributes); artifacts are
changed as bytes, and as programs and manifests whose hashes are put right again, so that the checks
behind the hashes are reached. A finding is written to `--findings` with its seed. Exit code 1 if
there is one.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import multiprocessing
import random
import resource
import struct
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

import tilewright
from tilewright.runtime.sections import digests
from tilewright.support.errors import TilewrightError

BATCH = 20  # cases of one worker process
HANG = 60.0  # seconds without an answer
MEMORY = 6 << 30  # bytes of address space of a worker
HEADER = struct.Struct("<8sIIQQ32s")  # of an artifact: see runtime/artifact.py


# ---------------------------------------------------------------- what is changed


def seeds() -> list[bytes]:
    """Small models that between them use most kinds of importer code."""
    generator = np.random.default_rng(0)

    def entry(name: str, *shape: int | str, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    def build(nodes: list, inputs: list, outputs: list, **weights: np.ndarray) -> bytes:
        constants = [numpy_helper.from_array(w, name) for name, w in weights.items()]
        graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
        opsets = [helper.make_opsetid("", 20)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()

    def weights(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    make = helper.make_node
    dense = build(
        [make("MatMul", ["x", "w"], ["t"]), make("Add", ["t", "b"], ["u"]),
         make("Shape", ["u"], ["s"]), make("Gather", ["s", "zero"], ["n"]),
         make("Concat", ["n", "rest"], ["target"], axis=0), make("Reshape", ["u", "target"], ["v"]),
         make("Softmax", ["v"], ["y"], axis=-1)],
        [entry("x", "batch", 8)], [entry("y", "batch", 2, 3)],
        w=weights(8, 6), b=weights(6), zero=np.array([0]), rest=np.array([2, 3]),
    )  # fmt: skip
    image = build(
        [make("Conv", ["x", "w"], ["t"], strides=[2, 2], pads=[1, 1, 1, 1]),
         make("Relu", ["t"], ["u"]),
         make("MaxPool", ["u"], ["v"], kernel_shape=[2, 2], strides=[1, 1]),
         make("Resize", ["v", "", "scales"], ["y"], mode="linear")],
        [entry("x", "n", 3, "h", "w")], [entry("y", "n", 4, "p", "q")],
        w=weights(4, 3, 3, 3), scales=np.array([1, 1, 2, 2], np.float32),
    )  # fmt: skip
    then = helper.make_graph([make("Neg", ["x"], ["a"])], "then", [], [entry("a", "n")])
    other = helper.make_graph([make("Abs", ["x"], ["b"])], "else", [], [entry("b", "n")])
    branch = build(
        [make("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        [entry("x", "n"), entry("c", kind=TensorProto.BOOL)], [entry("y", "n")],
    )  # fmt: skip
    index = build(
        [make("Slice", ["x", "from", "to", "axes", "steps"], ["t"]),
         make("Gather", ["t", "at"], ["u"], axis=1), make("Pad", ["u", "pads"], ["v"]),
         make("ReduceMean", ["v", "axes"], ["w"]), make("TopK", ["w", "k"], ["y", "i"])],
        [entry("x", "n", 9), entry("at", "k", kind=TensorProto.INT64)], [entry("y", 1, "m")],
        **{"from": np.array([0]), "to": np.array([5]), "axes": np.array([0]),
           "steps": np.array([1]), "pads": np.array([0, 1, 1, 0]), "k": np.array([1])},
    )  # fmt: skip
    return [dense, image, branch, index]


def change_bytes(data: bytes, chance: random.Random) -> bytes:
    """A few bytes flipped, replaced, removed, repeated, or the end cut off."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        if not changed:
            break
        at = chance.randrange(len(changed))
        length = chance.choice((1, 1, 2, 8, 64))
        match chance.randrange(6):
            case 0:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                changed[at] = chance.choice((0, 1, 127, 128, 255, chance.randrange(256)))
            case 2:
                del changed[at : at + length]
            case 3:
                changed[at:at] = changed[at : at + length]
            case 4:
                changed[at : at + 8] = struct.pack("<q", _integer(chance))
            case _:
                if chance.random() < 0.1:
                    del changed[at:]
    return bytes(changed)


def _integer(chance: random.Random) -> int:
    wide = (0, 1, -1, 2, 3, -2, 7, 255, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))
    return chance.choice((*wide, chance.randrange(-9, 99)))


def change_model(data: bytes, chance: random.Random) -> bytes:
    """A number or a name of the model's messages replaced by another."""
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return data
    try:
        for _ in range(chance.choice((1, 1, 2, 3))):
            _change_graph(model.graph, chance)
    except (IndexError, ValueError, TypeError):
        return data  # changed before, and no longer readable
    return model.SerializeToString()


def _change_graph(graph: onnx.GraphProto, chance: random.Random) -> None:
    nodes, values = list(graph.node), [*graph.input, *graph.output]
    names = [name for node in nodes for name in (*node.input, *node.output)]
    node = chance.choice(nodes)
    match chance.randrange(8):
        case 0 if node.input:
            node.input[chance.randrange(len(node.input))] = chance.choice([*names, ""])
        case 1:
            node.op_type = chance.choice([n.op_type for n in nodes] + ["Loop", "Einsum", "Cast"])
        case 2 if node.attribute:
            attribute = chance.choice(node.attribute)
            if attribute.ints:
                attribute.ints[chance.randrange(len(attribute.ints))] = _integer(chance)
            else:
                attribute.i = _integer(chance)
        case 3:
            node.attribute.append(helper.make_attribute("axis", chance.randrange(-5, 6)))
        case 4 if graph.initializer:
            tensor = chance.choice(graph.initializer)
            if tensor.data_type == TensorProto.INT64:
                values64 = numpy_helper.to_array(tensor).copy()
                values64.reshape(-1)[chance.randrange(values64.size)] = _integer(chance)
                tensor.CopyFrom(numpy_helper.from_array(values64, tensor.name))
            elif tensor.dims:
                tensor.dims[chance.randrange(len(tensor.dims))] = _integer(chance)
        case 5 if graph.initializer:
            chance.choice(graph.initializer).data_type = chance.randrange(0, 24)
        case 6:
            value = chance.choice(values).type.tensor_type
            if value.shape.dim:
                chance.choice(value.shape.dim).dim_value = _integer(chance)
            value.elem_type = chance.choice((value.elem_type, chance.randrange(0, 24)))
        case _:
            graph.node.append(chance.choice(nodes))


def change_artifact(data: bytes, chance: random.Random) -> bytes:
    """A number of the manifest or a program replaced, the hashes put right again."""
    try:
        return _change_artifact(data, chance)
    except (KeyError, ValueError, TypeError, IndexError, struct.error):
        return data  # changed before, and no longer readable


def _change_artifact(data: bytes, chance: random.Random) -> bytes:
    _, version, _, size, _, _ = HEADER.unpack_from(data)
    manifest = json.loads(data[HEADER.size : HEADER.size + size])
    start = -(-(HEADER.size + size) // 64) * 64
    sections = [bytearray(data[start + o : start + o + n]) for _, o, n, _ in manifest["sections"]]
    if chance.random() < 0.3:
        _change_json(manifest, chance)
    else:
        number = chance.choice([i for i, s in enumerate(manifest["sections"]) if s[0] != "code"])
        if manifest["sections"][number][0] in ("program", "image"):
            document = json.loads(sections[number])
            _change_json(document, chance)
            sections[number] = bytearray(json.dumps(document).encode())
        else:
            sections[number] = bytearray(change_bytes(bytes(sections[number]), chance))
        offset = 0
        for entry, section in zip(manifest["sections"], sections, strict=True):
            entry[1:] = [offset, len(section), *digests([memoryview(section)])]
            offset = -(-(offset + len(section)) // 64) * 64
    return _assemble(manifest, sections, version)


def _assemble(manifest: object, sections: list[bytearray], version: int) -> bytes:
    text = json.dumps(manifest, separators=(",", ":")).encode()
    start = -(-(HEADER.size + len(text)) // 64) * 64
    body = b""
    for section in sections:
        body = body.ljust(-(-len(body) // 64) * 64, b"\0") + section
    total = start + len(body)
    digest = hashlib.sha256(text).digest()
    header = HEADER.pack(b"TILEWRT\n", version, HEADER.size, len(text), total, digest)
    return (header + text).ljust(start, b"\0") + body


def _change_json(document: object, chance: random.Random) -> None:
    """Replace one value somewhere inside."""
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))  # type: ignore[arg-type, call-overload]
        if not keys:
            return
        key = chance.choice(keys)
        value = place[key]  # type: ignore[index]
        if isinstance(value, dict | list) and value and chance.random() < 0.95:
            place = value
            continue
        choices: list[object] = [_integer(chance), None, "", [], {}, "x" * 9, True, 1.5]
        if isinstance(value, int) and chance.random() < 0.7:
            choices = [value + chance.choice((-1, 1)), -value, _integer(chance)]
        elif isinstance(value, str) and chance.random() < 0.7:
            choices = [value[:-1], value + "0", value.replace("1", "9"), f"({value})//0", "n*n*n"]
        place[key] = chance.choice(choices)  # type: ignore[index]
        return


# ---------------------------------------------------------------- what is tried


def try_model(data: bytes) -> None:
    """Import and compile; a call is left out, as a changed model may be any program."""
    tilewright.compile(data, levels=["x86-64"])


def try_artifact(data: bytes) -> None:
    """Load. What an artifact says is run, so it is not called unless its bytes are good."""
    with tempfile.NamedTemporaryFile(suffix=".tw") as file:
        file.write(data)
        file.flush()
        loaded = tilewright.load(file.name)
        repr(loaded)
        for _ in (loaded.inputs, loaded.outputs, loaded.dimensions):
            loaded.stats()


def case(target: str, originals: list[bytes], seed: int) -> bytes:
    """The changed data of one seed."""
    chance = random.Random(seed)
    data = chance.choice(originals)
    structured = change_model if target == "model" else change_artifact
    for _ in range(chance.choice((1, 1, 2))):
        data = structured(data, chance)
    return change_bytes(data, chance) if chance.random() < 0.25 else data


def work(target: str, originals: list[bytes], seeds_: range, answers: Connection) -> None:
    """The body of a worker process: one answer per seed, empty when nothing is wrong."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    run: Callable[[bytes], None] = try_model if target == "model" else try_artifact
    for seed in seeds_:
        answers.send(("begin", seed))
        try:
            run(case(target, originals, seed))
            answers.send(("fine", ""))
        except TilewrightError as error:
            str(error)
            answers.send(("refused", ""))
        except BaseException as error:  # the point of fuzzing: anything else is a finding
            answers.send(("error", f"{error!r}\n{traceback.format_exc()}"))


def fuzz(target: str, originals: list[bytes], first: int, seconds: float) -> dict[int, str]:
    """Findings by seed."""
    found: dict[int, str] = {}
    counts = {"fine": 0, "refused": 0, "error": 0, "crash": 0}
    end, seed = time.monotonic() + seconds, first
    context = multiprocessing.get_context("fork")
    while time.monotonic() < end:
        ours, theirs = context.Pipe()
        batch = range(seed, seed + BATCH)
        worker = context.Process(target=work, args=(target, originals, batch, theirs), daemon=True)
        worker.start()
        theirs.close()
        current = seed
        while current < batch.stop:
            answer = _answer(ours)
            if answer is None:  # crashed, or no answer for too long
                worker.kill()
                worker.join()
                counts["crash"] += 1
                found[current] = f"the process ended or hung (exit code {worker.exitcode})"
                break
            kind, text = answer
            if kind == "begin":
                continue
            counts[kind] += 1
            if kind == "error":
                found[current] = text
            current += 1
        worker.join()
        seed = current + 1 if current < batch.stop else batch.stop
    tried = sum(counts.values())
    print(f"{target}: {tried} cases, {counts}, {len(found)} findings", flush=True)
    return found


def _answer(connection: Connection) -> tuple[str, str] | None:
    try:
        return connection.recv() if connection.poll(HANG) else None
    except EOFError:
        return None


def main() -> int:
    """Fuzz both targets for the given time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--target", choices=("model", "artifact", "both"), default="both")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--findings", type=Path, help="folder for cases that went wrong")
    options = parser.parse_args()
    originals: dict[str, list[bytes]] = {"model": seeds(), "artifact": []}
    with tempfile.TemporaryDirectory() as folder:
        for number, data in enumerate(originals["model"]):
            path = Path(folder) / f"{number}.tw"
            tilewright.compile(data, levels=["x86-64"]).save(path)
            originals["artifact"].append(path.read_bytes())
    failed = False
    for target in ("model", "artifact") if options.target == "both" else (options.target,):
        found = fuzz(target, originals[target], options.seed, options.seconds)
        for seed, text in found.items():
            failed = True
            print(f"--- {target}, seed {seed}\n{text}", flush=True)
            if options.findings is not None:
                options.findings.mkdir(parents=True, exist_ok=True)
                name = f"{target}-{seed}.{'onnx' if target == 'model' else 'tw'}"
                (options.findings / name).write_bytes(case(target, originals[target], seed))
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
