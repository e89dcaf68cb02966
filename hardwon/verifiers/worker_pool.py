"""Runs a verifier in processes that can be killed: none hangs, crashes or eats the memory of a training run.

Workers are started as fresh interpreters (never forked), each in its own session, so they are safe beside
threads and beside a loaded model; they import the verifier's module and nothing of torch by themselves.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hardwon.data import Verdict
from hardwon.verifiers.worker import HEADER

ReplyKind = Literal["done", "raised", "timeout", "crashed", "memory"]

START_SECONDS = 120.0
SAME_EACH_TIME = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
"""One thread a worker, and sets that iterate in the same order in every run."""

HARMLESS = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "TMPDIR")
"""All that a sealed worker sees of the environment: no keys, no tokens."""


@dataclass(frozen=True)
class Reply:
    """What came of one call: its value for "done", else a message."""

    kind: ReplyKind
    value: Any


class Worker:
    """One interpreter that runs the function. Its reply is one line of JSON."""

    def __init__(self, function: bytes, memory_bytes: int | None, sealed: bool) -> None:
        known = {name: os.environ[name] for name in HARMLESS if name in os.environ} if sealed else os.environ
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hardwon.verifiers.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**known, **SAME_EACH_TIME, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input, self.output = self.process.stdin, self.process.stdout
        self.received = b""
        self.ready = False
        self.deadline = time.monotonic() + START_SECONDS
        self.job: tuple[int, int] | None = None  # index of the call, how many workers it has ended
        self._send((sys.path, function, memory_bytes, sealed))

    def _send(self, message: Any) -> None:
        data = pickle.dumps(message)
        with contextlib.suppress(BrokenPipeError):  # seen as the end of its output
            self.input.write(HEADER.pack(len(data)) + data)
            self.input.flush()

    def begin(self, job: tuple[int, int], arguments: tuple[Any, ...], seconds: float) -> None:
        self.job = job
        self.deadline = time.monotonic() + seconds
        self._send((seconds, arguments))

    def receive(self) -> tuple[str, Any] | None:
        """The reply, None while it is incomplete, ("crashed", why) at the end of its output."""
        data = os.read(self.output.fileno(), 1 << 20)
        if not data:
            return "crashed", f"the verifier's process ended with code {self.end()}"
        self.received += data
        if not self.received.endswith(b"\n"):
            return None
        line, self.received = self.received, b""
        try:
            kind, value = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return "crashed", f"the verifier's process wrote garbage and ended with code {self.end()}"
        return kind, value

    def end(self) -> int | None:
        """Kills the process with everything it started in its group, and reaps it; returns its exit code."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        with contextlib.suppress(BrokenPipeError):
            self.input.close()
        self.output.close()
        return code


def end_all(workers: list[Worker], owner: int) -> None:
    """Only in the process that started them: a fork of it must not end its parent's workers."""
    while workers and os.getpid() == owner:
        workers.pop().end()


class WorkerPool:
    """`function` (picklable by its module's name) in `num_workers` killable processes.

    seconds      wall clock for each call, after which the worker and its group are killed: "timeout".
    memory_bytes address space a worker may take beyond its imports; None for no limit. A call that ends a
                 worker by crash or memory is tried once more in a fresh one.
    sealed       for verifiers that only compute: no environment, no writing, no network, no other processes
                 (worker.seal), as far as the system can. A user's function may need all of these.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        seconds: float,
        num_workers: int | None = None,
        memory_bytes: int | None = 2 << 30,
        sealed: bool = False,
    ) -> None:
        if seconds <= 0:
            raise ValueError(f"seconds={seconds}: a verifier needs a positive time limit, e.g. 5")
        if num_workers is not None and num_workers < 1:
            raise ValueError(f"num_workers={num_workers}: at least 1")
        self.function = pickle.dumps(function)
        self.seconds = seconds
        self.num_workers = num_workers or os.cpu_count() or 1
        self.memory_bytes = memory_bytes
        self.sealed = sealed
        self.workers: list[Worker] = []
        self.proved = False  # whether a worker ever started: before that a failing start is a user's mistake
        self.lock = threading.Lock()
        weakref.finalize(self, end_all, self.workers, os.getpid())  # also at interpreter exit

    def run(self, calls: Sequence[tuple[Any, ...]]) -> list[Reply]:
        """One reply for each call's arguments, in order. RuntimeError if the function can't be imported."""
        with self.lock:
            try:
                return _Batch(self, calls).run()
            except BaseException:
                end_all(
                    self.workers, os.getpid()
                )  # a worker may be busy with a call that nobody waits for any more
                raise

    def close(self) -> None:
        """Ends every worker; a later `run` starts new ones."""
        with self.lock:
            end_all(self.workers, os.getpid())


class _Batch:
    """The calls of one `run`, on their way through the workers."""

    def __init__(self, pool: WorkerPool, calls: Sequence[tuple[Any, ...]]) -> None:
        self.pool = pool
        self.calls = calls
        self.waiting = deque((index, 0) for index in range(len(calls)))
        self.replies: dict[int, Reply] = {}

    def run(self) -> list[Reply]:
        with selectors.DefaultSelector() as selector:
            for worker in self.pool.workers:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            while len(self.replies) < len(self.calls):
                self.start_workers(selector)
                self.hand_out()
                deadline = min((w.deadline for w in self.pool.workers if w.job or not w.ready), default=0.0)
                for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                    self.take(key.data, selector)
                self.end_late(selector)
        return [self.replies[index] for index in range(len(self.calls))]

    def start_workers(self, selector: selectors.BaseSelector) -> None:
        busy = sum(worker.job is not None for worker in self.pool.workers)
        while len(self.pool.workers) < min(self.pool.num_workers, busy + len(self.waiting)):
            worker = Worker(self.pool.function, self.pool.memory_bytes, self.pool.sealed)
            self.pool.workers.append(worker)
            selector.register(worker.output, selectors.EVENT_READ, worker)

    def hand_out(self) -> None:
        for worker in self.pool.workers:
            if worker.ready and worker.job is None and self.waiting:
                job = self.waiting.popleft()
                worker.begin(job, self.calls[job[0]], self.pool.seconds)

    def take(self, worker: Worker, selector: selectors.BaseSelector) -> None:
        output = worker.output
        received = worker.receive()
        if received is None:
            return
        kind, value = received
        if kind == "ready":
            worker.ready = self.pool.proved = True
            return
        ended = kind in ("crashed", "memory") or not worker.ready
        if ended:
            selector.unregister(output)
            self.discard(worker)
        if not worker.ready:
            self.failed_start(str(value))
        elif worker.job is not None:  # else it ended between two calls, and another is started if needed
            index, ends = worker.job
            if ended and ends == 0:
                self.waiting.appendleft((index, 1))
            else:
                self.replies[index] = Reply(kind, value)  # type: ignore[arg-type]
        worker.job = None

    def end_late(self, selector: selectors.BaseSelector) -> None:
        now = time.monotonic()
        for worker in list(self.pool.workers):
            if now < worker.deadline or (worker.ready and worker.job is None):
                continue
            selector.unregister(worker.output)
            self.discard(worker)
            if worker.job is None:
                self.failed_start(f"no answer within {START_SECONDS:.0f} s")
            else:
                message = f"stopped after {self.pool.seconds:g} s"
                self.replies[worker.job[0]] = Reply("timeout", message)

    def failed_start(self, message: str) -> None:
        """Raises if the function never ran at all; later on (no memory, no processes) it costs one call."""
        if not self.pool.proved:
            raise RuntimeError(f"the verifier could not be started: {message}")
        if self.waiting:
            self.replies[self.waiting.popleft()[0]] = Reply(
                "crashed", f"no worker could be started: {message}"
            )

    def discard(self, worker: Worker) -> None:
        worker.end()
        self.pool.workers.remove(worker)


def verdict(reply: Reply) -> Verdict:
    """The verdict for what a verifier returned: a bool, a grade, or a dict (correct, score, message, answer).

    A grade is correct from 1 on, unless the dict says otherwise. A verifier that raises, returns anything
    else or NaN, or crashes twice is `error`. An answer whose check ran out of time, or of memory in a fresh
    worker too, is `timeout`: it did not finish being checked.
    """
    if reply.kind == "timeout":
        return Verdict("timeout", message=str(reply.value))
    if reply.kind == "memory":
        return Verdict("timeout", message="the check ran out of memory")
    if reply.kind in ("raised", "crashed"):
        return Verdict("error", message=str(reply.value))
    found = reply.value if isinstance(reply.value, dict) else {"score": reply.value}
    score, correct = found.get("score"), found.get("correct")
    if score is not None and not (isinstance(score, (bool, int, float)) and math.isfinite(score)):
        return Verdict("error", message=f"the verifier returned {reply.value!r:.200}, not a finite number")
    if correct is None:
        if score is None:
            return Verdict("error", message=f"the verifier returned {reply.value!r:.200}, not a number")
        correct = score >= 1
    if not isinstance(correct, bool):
        return Verdict("error", message=f"the verifier returned correct={correct!r:.200}, not a bool")
    answer = found.get("answer")
    return Verdict(
        "correct" if correct else "wrong",
        None if score is None else float(score),
        str(found.get("message", "")),
        answer if isinstance(answer, str) and answer else None,
    )
