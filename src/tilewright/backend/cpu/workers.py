"""Compiling many modules at once, in this process and in others.

llvmlite lets one thread at a time into LLVM, so others need processes of their own. They take
modules from one queue; what one of them cannot do, because it does not start or ends early, this
process does. Start with :func:`compile_objects`.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from tilewright.backend.cpu.machine import Level, compile_object
from tilewright.support.processors import usable_processors

MOST_WORKERS = 8
PATIENCE = 60.0  # seconds for what a worker still does when all else is done
WORTHWHILE = 300_000  # characters of LLVM's language for each process, which take a second or so

_ROOT = str(Path(__file__).parents[3])
_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); import tilewright.backend.cpu.workers as w"
_WIDTH = 8  # bytes of a message's length


def compile_objects(modules: Sequence[str], level: Level) -> list[bytes]:
    """The object file of each module for ``level``, in order.

    Raises ``RuntimeError`` (from llvmlite) where a module is not valid LLVM IR.
    """
    made: dict[int, bytes] = {}
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in sorted(range(len(modules)), key=lambda n: -len(modules[n])):
        waiting.put(number)

    def help_out(worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdin is not None and worker.stdout is not None
        with contextlib.suppress(OSError, EOFError, queue.Empty), worker:
            while True:
                number = waiting.get_nowait()
                _send(worker.stdin, pickle.dumps((modules[number], level)))
                made[number] = _receive(worker.stdout)

    workers = _workers(modules)
    helpers = [threading.Thread(target=help_out, args=(w,), daemon=True) for w in workers]
    for helper in helpers:
        helper.start()
    try:
        with contextlib.suppress(queue.Empty):
            while True:
                number = waiting.get_nowait()
                made[number] = compile_object(modules[number], level)
        for helper in helpers:
            helper.join(PATIENCE)
    finally:
        for worker in workers:
            worker.kill()
    return [
        made[number] if number in made else compile_object(module, level)
        for number, module in enumerate(modules)
    ]


def _workers(modules: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """As many processes as there are processors and work for, beside this one."""
    work = sum(map(len, modules)) // WORTHWHILE
    count = min(work, len(modules), usable_processors(), MOST_WORKERS) - 1
    command = [sys.executable, "-c", f"{_SERVE}; w.serve()", _ROOT]
    found: list[subprocess.Popen[bytes]] = []
    with contextlib.suppress(OSError):
        for _ in range(count if sys.executable else 0):
            pipe = subprocess.PIPE
            quiet = subprocess.DEVNULL
            found.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet))
    return found


def serve() -> None:
    """Compile what comes on standard input until it ends; a worker's whole life."""
    with contextlib.suppress(EOFError):
        while True:
            module, level = pickle.loads(_receive(sys.stdin.buffer))
            _send(sys.stdout.buffer, compile_object(module, level))


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(_WIDTH, "little"))
    stream.write(message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes:
    return _exactly(stream, int.from_bytes(_exactly(stream, _WIDTH), "little"))


def _exactly(stream: IO[bytes], count: int) -> bytes:
    found = stream.read(count)
    if len(found) < count:
        raise EOFError
    return found
