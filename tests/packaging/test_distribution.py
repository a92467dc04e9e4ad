"""What is shipped: archives with everything in them, an artifact without a compiler, metadata.

Each archive is made here by the build backend of this environment, without its isolation, since
that would download.
"""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from support.small_models import save_encoder

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD = (
    "import sys; from scikit_build_core import build; "
    "print(getattr(build, 'build_' + sys.argv[1])(sys.argv[2]))"
)


def archive(kind: str, folder: Path) -> Path:
    """The source archive or wheel of this repository, made into ``folder``.

    Tests that call it are slow: only `make test` has the build backend for certain.
    """
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "-c", BUILD, kind, str(folder)]
    subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, env={**os.environ, "PATH": tools}
    )
    (made,) = folder.iterdir()
    return made


@pytest.mark.slow
def test_the_source_archive_has_all_that_building_and_testing_need(tmp_path: Path) -> None:
    with tarfile.open(archive("sdist", tmp_path)) as made:
        names = {name.partition("/")[2] for name in made.getnames()}
        (about,) = (name for name in made.getnames() if name.endswith("/PKG-INFO"))
        file = made.extractfile(about)
        assert file is not None
        metadata = email.message_from_bytes(file.read())
    needed = {
        "CMakeLists.txt",
        "LICENSE",
        "README.md",
        "requirements-docs.txt",
        "requirements-oldest.txt",
        "scripts/test_wheel.py",
        *(str(path.relative_to(ROOT)) for path in (ROOT / "src" / "native").iterdir()),
        "src/tilewright/py.typed",
        "tests/conftest.py",
    }
    assert needed <= names
    assert not any(part in name for name in names for part in (".venv", "__pycache__", ".so"))
    assert metadata["Version"] == tw.__version__
    assert metadata["Summary"] == PROJECT["description"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Author"] == "The tilewright developers"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert set(metadata.get_all("Classifier", ())) == set(PROJECT["classifiers"])
    assert set(PROJECT["dependencies"]) <= set(metadata.get_all("Requires-Dist", ()))
    assert "compiles an ONNX model" in str(metadata.get_payload())


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    lines = (ROOT / "requirements-oldest.txt").read_text(encoding="utf-8").splitlines()
    oldest = {line.replace("==", ">=") for line in lines if line and line[0] not in "#-"}
    assert oldest == set(PROJECT["dependencies"])


def test_locks_pin_every_package_with_a_hash() -> None:
    for name in ("requirements-demo.txt", "requirements-ci.txt", "requirements-docs.txt"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line and line[0] not in "#-"]
        assert lines
        assert [line for line in lines if "==" not in line or "--hash=sha256:" not in line] == []


def check_contents(names: set[str]) -> None:
    """A wheel has the package, its types and its license; no tests, no sources of C++."""
    about = f"tilewright-{tw.__version__}.dist-info"
    packages = {"tilewright", about}
    assert {name.partition("/")[0] for name in names} == packages
    assert {"tilewright/py.typed", f"{about}/METADATA", f"{about}/licenses/LICENSE"} <= names
    assert [name for name in names if name.endswith((".cpp", ".hpp")) or "test" in name] == []
    (native,) = (name for name in names if name.endswith(".so"))
    assert native.startswith("tilewright/runtime/_native")


RUN = """
import sys
import numpy as np
import tilewright as tw

ids = np.ones((2, 3), np.int64)
np.save(sys.argv[2], tw.load(sys.argv[1])(ids, attention_mask=ids))
"""


@pytest.mark.slow
def test_an_artifact_runs_where_nothing_but_numpy_and_ml_dtypes_is_installed(
    tmp_path: Path,
) -> None:
    model = tw.compile(save_encoder(tmp_path / "model.onnx"), dims={"batch": (1, 4)})
    model.save(tmp_path / "model.tw")
    (tmp_path / "wheel").mkdir()
    library = tmp_path / "library"
    with zipfile.ZipFile(archive("wheel", tmp_path / "wheel")) as wheel:
        check_contents(set(wheel.namelist()))
        wheel.extractall(library)
    for package in ("numpy", "numpy.libs", "ml_dtypes"):
        (found,) = (f for f in map(Path, sys.path) if (f / package).is_dir())
        (library / package).symlink_to(found / package)
    # -I ignores the environment and the user's packages, -S those of this interpreter.
    script = f"import sys; sys.path.insert(0, {str(library)!r})\n{RUN}"
    command = [sys.executable, "-I", "-S", "-c", script]
    subprocess.run([*command, str(tmp_path / "model.tw"), str(tmp_path / "y.npy")], check=True)
    ids = np.ones((2, 3), np.int64)
    assert np.array_equal(np.load(tmp_path / "y.npy"), model(ids, ids))
