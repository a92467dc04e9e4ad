"""What a file is, whatever it is called, and what to do with one that is not what was expected.

People give a checkpoint, a pointer of git-lfs or a compiled artifact where a model is wanted; a
parser's complaint about the first byte helps none of them. :func:`what_is` looks at the content
first and at the name where the content says nothing. Start with :func:`require`.
"""

from __future__ import annotations

import os
import secrets
import stat
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tilewright.support.errors import InputError, TilewrightError
from tilewright.support.wire import is_tensor_message, message_fields

_HEAD = 512
ARTIFACT_MAGIC = b"TILEWRT\n"


_ANY_MODEL = "Give an ONNX file"


@dataclass(frozen=True)
class FileKind:
    """One kind of file: a short name, the phrase for a sentence, and how to make a model of it."""

    name: str
    phrase: str
    hint: str = _ANY_MODEL


_EXPORT = "Export the model to ONNX first"
_TORCH = (
    "Load it in PyTorch and export it: torch.onnx.export(model, args, 'model.onnx', dynamo=True)"
)
_TENSOR = "Give it as an input, for example --input x=FILE"

MODEL = FileKind("onnx", "an ONNX model", "Compile it first: tilewright compile MODEL -o MODEL.tw")
ARTIFACT = FileKind("artifact", "a tilewright artifact", "Give the ONNX file it was compiled from")
NPY = FileKind("npy", "a NumPy array", _TENSOR)
NPZ = FileKind("npz", "a NumPy archive of arrays", "Give it as inputs: --input FILE.npz")
TENSOR = FileKind("tensor", "an ONNX tensor", _TENSOR)
MISSING = FileKind("missing", "no file", "Check the path")
FOLDER = FileKind("folder", "a folder", "Name the file in it")
UNKNOWN = FileKind("unknown", "a file of an unknown kind")

_SAVED_MODEL = FileKind(
    "saved-model",
    "a TensorFlow SavedModel",
    "Convert it: python -m tf2onnx.convert --saved-model FOLDER --output model.onnx",
)
_KERAS = FileKind("keras", "a Keras model", "Export it: model.export('model.onnx', format='onnx')")
_CHECKPOINT = FileKind("torch", "a PyTorch checkpoint", _TORCH)
_SAFETENSORS = FileKind(
    "safetensors", "a safetensors file of weights without a model",
    "Export the model that they belong to: optimum-cli export onnx --model NAME FOLDER",
)  # fmt: skip
_LFS = FileKind("git-lfs", "a Git LFS pointer", "Run git lfs pull")
_PACKED = FileKind("packed", "a compressed archive", "Unpack it and give the .onnx file in it")
_IMAGE = FileKind("image", "an image", "Save it as the array that the model takes: numpy.save")
_WEB_PAGE = FileKind("html", "a web page", "Download the file itself, not the page about it")

# What a file begins with, from the given byte on.
_SIGNATURES: tuple[tuple[int, bytes, FileKind], ...] = (
    (0, ARTIFACT_MAGIC, ARTIFACT),
    (0, b"version https://git-lfs", _LFS),
    (0, b"\x93NUMPY", NPY),
    (
        0,
        b"GGUF",
        FileKind("gguf", "a GGUF file of quantised weights", "Give the model's ONNX export"),
    ),
    (0, b"\x89HDF\r\n\x1a\n", FileKind("hdf5", "an HDF5 file, as Keras writes", _KERAS.hint)),
    (4, b"TFL3", FileKind("tflite", "a TensorFlow Lite model", _EXPORT)),
    (4, b"ORTM", FileKind("ort", "a model in ONNX Runtime's own format", "Give the .onnx file")),
    (0, b"\x1f\x8b", _PACKED),
    (0, b"\x28\xb5\x2f\xfd", _PACKED),
    (0, b"\xfd7zXZ", _PACKED),
    (0, b"7z\xbc\xaf", _PACKED),
    (257, b"ustar", _PACKED),
    (0, b"\x89PNG\r\n", _IMAGE),
    (0, b"\xff\xd8\xff", _IMAGE),
    (0, b"\x7fELF", FileKind("program", "a program or a library of this system")),
)
# The kinds whose hint helps whatever file is wanted.
_FOR_ANY = ("empty", "unreadable", "device", "folder", "git-lfs", "image", "html")
_PICKLES = tuple(bytes((0x80, version)) for version in range(2, 6))
# What text begins with, in lower case and without leading blanks.
_TEXTS = (
    (
        b"<?xml",
        FileKind("xml", "an XML file, as OpenVINO's models are", "Give the ONNX file instead"),
    ),
    (b"<!doctype html", _WEB_PAGE),
    (b"<html", _WEB_PAGE),
)
_NAMES = {
    ".py": FileKind("python", "a Python source file", _EXPORT),
    ".ipynb": FileKind("notebook", "a notebook", _EXPORT),
    ".json": FileKind("json", "a JSON file"),
    ".toml": FileKind("toml", "a TOML file"),
}


def what_is(path: str | os.PathLike[str]) -> FileKind:
    """The kind of a file or folder, by its content and, where that says nothing, by its name."""
    place = Path(path)
    try:
        status = place.stat()
        if stat.S_ISDIR(status.st_mode):
            return _folder(place)
        if not stat.S_ISREG(status.st_mode):
            return FileKind("device", "a device or a pipe", "Give a file on disk")
        if status.st_size == 0:
            return FileKind("empty", "an empty file", "Write or download it again")
        with place.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        return MISSING
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return FileKind("unreadable", f"a file that cannot be read ({why})", "Check its access")
    return _by_signature(place, head, status.st_size) or _by_message(place) or _by_text(place, head)


def require(
    path: str | os.PathLike[str],
    *wanted: FileKind,
    error: type[TilewrightError] = InputError,
) -> FileKind:
    """The kind of a file, which is one of those ``wanted`` or ``UNKNOWN``.

    Raises ``error``, which says what the file is, for anything else. What is unknown is for the
    reader of the file to judge.
    """
    found = what_is(path)
    if found in wanted or found is UNKNOWN:
        return found
    if found.name == FOLDER.name and MODEL not in wanted:
        found = _folder_of_artifacts(Path(path))
    if found is MISSING:
        raise error("There is no such file", where=os.fspath(path), hint=found.hint)
    names = " or ".join(kind.phrase for kind in wanted)
    # Most hints say how to get a model; where none is wanted, only those for any file help.
    is_for_model = MODEL in wanted or ARTIFACT in wanted
    hint = found.hint if is_for_model or found.name in _FOR_ANY else f"Give {names}"
    if MODEL not in wanted and ARTIFACT in wanted and found.hint == _ANY_MODEL:
        hint = "Give a file that tilewright compile or model.save wrote"
    raise error(f"This is {found.phrase}, not {names}", where=os.fspath(path), hint=hint)


def _folder_of_artifacts(place: Path) -> FileKind:
    artifacts = sorted(path.name for path in place.glob("*.tw"))
    if not artifacts:
        return FOLDER
    return FileKind(FOLDER.name, FOLDER.phrase, f"Give the file in it: {place / artifacts[0]}")


def place_beside(path: Path) -> Path:
    """Where to write what takes the place of ``path`` by a renaming, as a whole.

    Raises ValueError where that is a device or a pipe, which must not be replaced, and OSError
    where nobody can tell.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError("a device or a pipe cannot be replaced by a file")
    # No longer name, which a file system might not take, and with the ending that writers ask for.
    return path.with_name(f".{secrets.token_hex(8)}{path.suffix}")


def is_artifact(path: str | os.PathLike[str]) -> bool:
    """Whether the file is a compiled model, by its first bytes; False where it cannot be read."""
    return what_is(path) == ARTIFACT


def _folder(place: Path) -> FileKind:
    if (place / "saved_model.pb").is_file():
        return _SAVED_MODEL
    models = sorted(path.name for path in place.glob("*.onnx"))
    if models:
        return FileKind("folder", "a folder", f"Give the file in it: {place / models[0]}")
    if (place / "config.json").is_file() and any(place.glob("*.safetensors")):
        hint = f"Export it: optimum-cli export onnx --model {place} FOLDER"
        return FileKind("hugging-face", "a folder with a Hugging Face model", hint)
    return FOLDER


def _by_signature(place: Path, head: bytes, size: int) -> FileKind | None:
    for offset, signature, kind in _SIGNATURES:
        if head[offset : offset + len(signature)] == signature:
            return kind
    if head.startswith(b"PK\x03\x04") or head.startswith(b"PK\x05\x06"):
        return _archive(place)
    if int.from_bytes(head[:8], "little") <= size - 8 and head[8:9] == b"{":
        return _SAFETENSORS
    if head.startswith(_PICKLES):
        return FileKind("pickle", "a pickle, as older PyTorch checkpoints are", _TORCH)
    return None


def _archive(place: Path) -> FileKind:
    try:
        with zipfile.ZipFile(place) as archive:
            names = archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return FileKind("packed", "a damaged ZIP archive", "Download or write it again")
    if any(name.rpartition("/")[2] == "data.pkl" for name in names):
        return _CHECKPOINT
    if any(name.endswith("archive_format") for name in names):
        return FileKind("torch-program", "an exported PyTorch program", _TORCH)
    if "model.weights.h5" in names:
        return _KERAS
    if names and all(name.endswith(".npy") for name in names):
        return NPZ
    # An archive without arrays is one of arrays, too, if its name says so.
    return NPZ if not names and place.suffix == ".npz" else _PACKED


def _by_message(place: Path) -> FileKind | None:
    """Protocol buffers do not say what they are; the numbers of their fields do, if all fit."""
    fields = message_fields(place)
    if fields is None:
        return None
    if fields.get(7) == "bytes" and fields.get(1, "varint") == "varint" and 8 in fields:
        return MODEL
    if fields.keys() <= {1, 2} and fields.get(1) == "varint" and fields.get(2) == "bytes":
        return _SAVED_MODEL if place.name == "saved_model.pb" else None
    if is_tensor_message(fields):
        return TENSOR
    if place.suffix == ".pb" and fields.get(1) == "bytes":
        return FileKind("frozen-graph", "a TensorFlow graph", _EXPORT)
    return None


def _by_text(place: Path, head: bytes) -> FileKind:
    start = head.lstrip().lower()
    for words, kind in _TEXTS:
        if start.startswith(words):
            return kind
    if place.suffix in _NAMES:
        return _NAMES[place.suffix]
    if place.suffix != ".onnx" and b"\0" not in head and not any(byte < 9 for byte in head):
        return FileKind("text", "a text file")
    return UNKNOWN
