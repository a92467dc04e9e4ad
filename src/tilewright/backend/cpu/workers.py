"""Compiling many modules at once, in this process and in others.

llvmlite lets one thread at a time into LLVM, so others need processes of their own. They take
modules from one queue while this process still writes some, and then takes some, too; what one of
them cannot do, because it does not start or ends early, this process does. Start with
:func:`compile_objects`.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from tilewright.backend.cpu.machine import Level, ModuleText, compile_object
from tilewright.support.processors import usable_processors

MOST_WORKERS = 8
PATIENCE = 60.0  # seconds for what a worker still does when all else is done
WORTHWHILE = 300_000  # characters of LLVM's language for each process, which take a second or so

_ROOT = str(Path(__file__).parents[3])
_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); import tilewright.backend.cpu.workers as w"
_WIDTH = 8  # bytes of a message's length
_NONE = -1  # in place of the number of a module: there are no more


def compile_objects(modules: Iterable[ModuleText], level: Level) -> list[bytes]:
    """The object file of each module for ``level``, in order.

    Modules may be written while they are taken: others are compiled meanwhile, the largest first.
    Raises ``RuntimeError`` (from llvmlite) where a module is not valid LLVM IR.
    """
    texts: list[ModuleText] = []
    made: dict[int, bytes] = {}
    waiting: queue.PriorityQueue[tuple[int, int]] = queue.PriorityQueue()
    workers: list[subprocess.Popen[bytes]] = []
    helpers: list[threading.Thread] = []

    def help_out(worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdin is not None and worker.stdout is not None
        with contextlib.suppress(OSError, EOFError), worker:
            while (number := waiting.get()[1]) != _NONE:
                _send(worker.stdin, pickle.dumps((texts[number], level)))
                made[number] = _receive(worker.stdout)

    try:
        size, most = 0, min(usable_processors(), MOST_WORKERS)
        for number, text in enumerate(modules):
            texts.append(text)
            length = _length(text)
            waiting.put((-length, number))
            size += length
            # As many processes as there are processors and work for, beside this one.
            if len(workers) + 1 < min(size // WORTHWHILE, number + 1, most):
                worker = _start()
                if worker is None:
                    most = 1
                    continue
                workers.append(worker)
                helpers.append(threading.Thread(target=help_out, args=(worker,), daemon=True))
                helpers[-1].start()
        for _ in range(1 + len(helpers)):  # one for each that takes modules
            waiting.put((1, _NONE))
        while (number := waiting.get()[1]) != _NONE:
            made[number] = compile_object(texts[number], level)
        for helper in helpers:
            helper.join(PATIENCE)
    finally:
        for worker in workers:
            worker.kill()
            waiting.put((1, _NONE))
    return [
        made[number] if number in made else compile_object(text, level)
        for number, text in enumerate(texts)
    ]


def _length(module: ModuleText) -> int:
    """Of its text; half of the time that parts take is theirs alone, as they are optimised once."""
    return len(module.text) + sum(map(len, module.inlined)) // 2


def _start() -> subprocess.Popen[bytes] | None:
    """One more process, unless none can be started."""
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    command = [sys.executable, "-c", f"{_SERVE}; w.serve()", _ROOT]
    with contextlib.suppress(OSError):
        if sys.executable:
            return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet)
    return None


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
