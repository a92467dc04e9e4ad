"""Cases in child processes with limits on time and memory, several at once.

This process has all imports done and forks one child per case, so that a hang, a crash or a leak
ends with it. It runs no threads, and compiles once before it forks, so that LLVM is initialised.
Start with :func:`run_all`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import resource
import select
import signal
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from .case import Finding
from .check import Outcome

Task = Callable[[Callable[[str], None]], Outcome]
_HEAD = struct.Struct("<Q")


@dataclass(frozen=True)
class Limits:
    """Of one child: seconds on the clock and of the processor, bytes of private memory."""

    seconds: float = 300.0
    processor_seconds: int = 60
    memory: int = 4 << 30


@dataclass
class _Child:
    number: int
    pid: int
    pipe: int
    deadline: float
    errors: IO[bytes]
    received: bytearray = field(default_factory=bytearray)
    stage: str = "start"
    has_ended: bool = False
    outcome: Outcome | None = None


def run_one(task: Task, limits: Limits) -> Outcome:
    """One task in a child."""
    return next(run_all([(0, task)], 1, limits))[1]


def run_all(
    tasks: Iterable[tuple[int, Task]], jobs: int, limits: Limits
) -> Iterator[tuple[int, Outcome]]:
    """Every task in a child of its own, as many at once as ``jobs``; outcomes as they come."""
    waiting = iter(tasks)
    running: dict[int, _Child] = {}
    more = True
    try:
        while running or more:
            while more and len(running) < jobs:
                entry = next(waiting, None)
                if entry is None:
                    more = False
                    break
                child = _start(*entry, limits)
                running[child.pipe] = child
            if not running:
                break
            soonest = min(child.deadline for child in running.values()) - time.monotonic()
            ready, _, _ = select.select(list(running), [], [], max(soonest, 0.0))
            for pipe in ready:
                _receive(running[pipe])
            for child in list(running.values()):
                is_late = time.monotonic() > child.deadline
                if child.outcome is not None or child.has_ended or is_late:
                    del running[child.pipe]
                    yield child.number, _finish(child, is_late)
    finally:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)


def _start(number: int, task: Task, limits: Limits) -> _Child:
    reading, writing = os.pipe()
    errors = tempfile.TemporaryFile()  # noqa: SIM115
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _serve(task, writing, errors, limits)
    os.close(writing)
    return _Child(number, pid, reading, time.monotonic() + limits.seconds, errors)


def _serve(task: Task, pipe: int, errors: IO[bytes], limits: Limits) -> None:
    """The body of a child; never returns."""
    try:
        os.dup2(errors.fileno(), 2)
        faulthandler.enable(file=2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (limits.memory, limits.memory))
        seconds = limits.processor_seconds
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        outcome = task(lambda name: _send(pipe, name))
        _send(pipe, outcome)
    except BaseException as error:  # of the fuzzer itself, or memory ran out
        with contextlib.suppress(BaseException):
            _send(pipe, Outcome(Finding("foreign", f"{type(error).__name__}: {error}")))
    finally:
        os._exit(0)


def _send(pipe: int, message: object) -> None:
    data = pickle.dumps(message)
    data = _HEAD.pack(len(data)) + data
    while data:
        data = data[os.write(pipe, data) :]


def _receive(child: _Child) -> None:
    data = os.read(child.pipe, 1 << 16)
    if not data:
        child.has_ended = True
        return
    child.received += data
    while len(child.received) >= _HEAD.size:
        (size,) = _HEAD.unpack_from(child.received)
        if len(child.received) < _HEAD.size + size:
            return
        message: Any = pickle.loads(child.received[_HEAD.size : _HEAD.size + size])
        del child.received[: _HEAD.size + size]
        if isinstance(message, str):
            child.stage = message
        else:
            child.outcome = message


def _finish(child: _Child, is_late: bool) -> Outcome:
    """What came of a child that answered, crashed, or is late, and an end of it."""
    if is_late and child.outcome is None:
        os.kill(child.pid, signal.SIGABRT)  # faulthandler says where it was
        time.sleep(0.2)
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    os.close(child.pipe)
    child.errors.seek(0)
    said = child.errors.read().decode(errors="replace")[-4000:]
    child.errors.close()
    if child.outcome is not None:
        return child.outcome
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if is_late or number == signal.SIGXCPU:
        finding = Finding("hang", f"in {child.stage}\n{said}")
    else:
        name = signal.Signals(number).name if number else "exit"
        finding = Finding("crash", f"{name} in {child.stage}\n{said}")
    return Outcome(finding, ended_in=child.stage)
