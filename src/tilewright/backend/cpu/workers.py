"""Compiling many modules at once, in this process and in others.

llvmlite lets one thread at a time into LLVM, so others need processes of their own. They take
modules from one queue while this process still writes some, and then takes some, too; what one of
them cannot do, because it does not start or ends early, this process does. Start with
:class:`Objects`.
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

MOST_WORKERS = 8  # processes: a limit of what compiling takes of a large machine
PATIENCE = 60.0  # seconds for what a worker still does when all else is done
WORTHWHILE = 300_000  # characters of LLVM's language for each process, which take a second or so

_ROOT = str(Path(__file__).parents[3])
_SERVE = "import sys; sys.path.insert(0, sys.argv[1]); import tilewright.backend.cpu.workers as w"
_WIDTH = 8  # bytes of a message's length
_NONE = -1  # in place of the number of a module: there are no more


class Objects:
    """The object files of modules for one level: begun as they are added, while others are written.

    A context, at whose end the other processes end.
    """

    def __init__(self, level: Level) -> None:
        self._level = level
        self._texts: list[ModuleText] = []
        self._made: dict[int, bytes] = {}
        self._waiting: queue.PriorityQueue[tuple[int, int]] = queue.PriorityQueue()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._helpers: list[threading.Thread] = []
        self._size = 0  # characters
        self._most = min(usable_processors(), MOST_WORKERS)

    def __enter__(self) -> Objects:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
            self._waiting.put((1, _NONE))
        self._workers = []

    def add(self, module: ModuleText) -> None:
        """One module more; of those that are added, the largest are compiled first."""
        number, length = len(self._texts), _length(module)
        self._texts.append(module)
        self._waiting.put((-length, number))
        self._size += length
        # As many processes as there are processors and work for, beside this one.
        if len(self._workers) + 1 < min(self._size // WORTHWHILE, number + 1, self._most):
            worker = _start()
            if worker is None:
                self._most = 1
                return
            self._workers.append(worker)
            helper = threading.Thread(target=self._help_out, args=(worker,), daemon=True)
            self._helpers.append(helper)
            helper.start()

    def _help_out(self, worker: subprocess.Popen[bytes]) -> None:
        assert worker.stdin is not None and worker.stdout is not None
        with contextlib.suppress(OSError, EOFError), worker:
            while (number := self._waiting.get()[1]) != _NONE:
                _send(worker.stdin, pickle.dumps((self._texts[number], self._level)))
                self._made[number] = _receive(worker.stdout)

    def finish(self) -> list[bytes]:
        """The object file of each module, in the order in which they were added.

        Raises ``RuntimeError`` (from llvmlite) where a module is not valid LLVM IR.
        """
        for _ in range(1 + len(self._helpers)):  # one for each that takes modules
            self._waiting.put((1, _NONE))
        while (number := self._waiting.get()[1]) != _NONE:
            self._made[number] = compile_object(self._texts[number], self._level)
        for helper in self._helpers:
            helper.join(PATIENCE)
        for number, text in enumerate(self._texts):
            if number not in self._made:
                self._made[number] = compile_object(text, self._level)
        return [self._made[number] for number in range(len(self._texts))]


def compile_objects(modules: Iterable[ModuleText], level: Level) -> list[bytes]:
    """The object file of each module for ``level``, in order.

    Raises ``RuntimeError`` (from llvmlite) where a module is not valid LLVM IR.
    """
    with Objects(level) as objects:
        for module in modules:
            objects.add(module)
        return objects.finish()


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
