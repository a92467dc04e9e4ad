"""The tests of the runtime, and its stress test, with sanitizers of GCC in the native extension.

    python scripts/sanitize.py address        addresses and undefined behaviour
    python scripts/sanitize.py thread         data races

Builds the extension once more, in build/, and puts it in the place of the installed one for the
tests and the processes that they start. Kernels, numpy and Python itself are not instrumented. The
exit code is that of the tests, and not 0 where a sanitizer has something to say. Further arguments
go to pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = {"address": "address;undefined", "thread": "thread"}
# The runtime library of the sanitizer comes first in the process, and knows the one of C++.
PRELOADED = {"address": ("libasan.so", "libstdc++.so"), "thread": ("libtsan.so", "libstdc++.so")}
OPTIONS = {
    "address": {
        # Python frees what it likes at exit.
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1:exitcode=66",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
    },
    "thread": {
        "TSAN_OPTIONS": "exitcode=66:halt_on_error=1:die_after_fork=0"
        ":ignore_noninstrumented_modules=1",
    },
}
# Found by Python in every process of the tests, the installed extension comes second.
SITE = """\
import importlib.machinery
import importlib.util
import sys


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "tilewright.runtime._native":
            return None
        return importlib.util.spec_from_file_location(name, {module!r})


sys.meta_path.insert(0, Finder)
"""


def build(kind: str) -> Path:
    """The folder of the extension with this sanitizer; up to date."""
    folder = ROOT / "build" / f"sanitize-{kind}"
    tools = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    find = [sys.executable, "-m", "nanobind", "--cmake_dir"]
    nanobind = subprocess.run(find, capture_output=True, text=True, check=True).stdout.strip()
    configure = ["cmake", "-S", ROOT, "-B", folder, "-DCMAKE_BUILD_TYPE=Debug"]
    configure += [f"-DTILEWRIGHT_SANITIZE={SANITIZERS[kind]}", f"-Dnanobind_DIR={nanobind}"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (configure, ["cmake", "--build", folder, "--parallel", "2"]):
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return folder


def environment_of(kind: str, folder: Path) -> dict[str, str]:
    """What processes need that load the extension in ``folder``."""
    modules = [path for path in folder.glob("_native*.so") if path.is_file()]
    assert len(modules) == 1, f"{len(modules)} extensions in {folder}"
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(SITE.format(module=str(modules[0])))
    preloaded = [
        subprocess.run(
            ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in PRELOADED[kind]
    ]
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))
    return os.environ | OPTIONS[kind] | {"PYTHONPATH": path, "LD_PRELOAD": " ".join(preloaded)}


def main() -> int:
    """Build, then test."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=SANITIZERS)
    options, further = parser.parse_known_args()
    environment = environment_of(options.kind, build(options.kind))
    # A sanitizer ends the process at once, so what pytest captured would be lost.
    tests = [sys.executable, "-m", "pytest", "-q", "--capture=no", "-m", "not slow and not peers"]
    tests += [ROOT / "tests" / "runtime", *further]
    stress = [sys.executable, ROOT / "scripts" / "stress.py", "--seconds", "10"]
    for command in (tests, stress):
        # Some systems place memory so randomly that the sanitizers find no room for theirs.
        fixed = ["setarch", "--addr-no-randomize", *command]
        code = subprocess.run(fixed, env=environment, check=False).returncode
        if code != 0:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
