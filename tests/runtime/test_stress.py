"""The stress test of the runtime, for a few seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "stress.py"


@pytest.mark.slow
def test_threads_get_the_same_bits_while_others_load_shrink_and_drop_models() -> None:
    command = [sys.executable, str(SCRIPT), "--seconds", "3", "--shapes", "6"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
