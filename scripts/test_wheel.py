"""The quick tests with what is shipped: a wheel, where none of the sources of the package are.

    python scripts/test_wheel.py -n 2

Makes the source archive, and the wheel from it, in a temporary folder; installs the wheel, with all
it asks for and the extra ``test``, into an environment of its own; and runs the tests of the
unpacked archive there, without its ``src``. The exit code is that of the tests. Needs the package
``build``; arguments go to pytest.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUICK = "not slow and not peers"


def tests(folder: Path) -> Path:
    """The unpacked source archive without the package's sources; archive and wheel are beside."""
    command = [sys.executable, "-m", "build", "--outdir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder)
    unpacked = folder / archive.name.removesuffix(".tar.gz")
    shutil.rmtree(unpacked / "src")
    return unpacked


def environment(wheel: Path, folder: Path) -> Path:
    """The Python of a new environment that has the wheel and what it asks for."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"{wheel}[test]"], check=True)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    _, arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="tilewright-wheel-") as name:
        unpacked = tests(Path(name))
        (wheel,) = Path(name).glob("*.whl")
        python = environment(wheel, Path(name) / "environment")
        # The caller's packages would come before the wheel.
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [python, "-m", "pytest", "-q", "-m", QUICK, *arguments]
        sys.exit(subprocess.run(command, cwd=unpacked, env=variables, check=False).returncode)


if __name__ == "__main__":
    main()
