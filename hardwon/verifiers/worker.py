"""The process that runs a verifier: started by worker_pool, imports nothing heavy, trusts nothing it runs.

Input on stdin: length-prefixed pickles from the parent. The first is (sys.path, pickled function,
memory allowance in bytes or None, whether to seal); each later one is (seconds, arguments). Output on the
pipe that was stdout: one JSON line for each, [kind, value] with kind "ready", "done", "raised" or "memory".
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import select
import signal
import struct
import sys
from typing import Any

HEADER = struct.Struct(">Q")
ORPHAN_CHECK_SECONDS = 5.0
GRACE_SECONDS = 5.0


def read_exactly(descriptor: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = os.read(descriptor, min(size - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def read_message(descriptor: int) -> Any:
    """Unbuffered, so that `select` on the descriptor tells the truth."""
    (size,) = HEADER.unpack(read_exactly(descriptor, HEADER.size))
    return pickle.loads(read_exactly(descriptor, size))


def limit_memory(allowance: int | None) -> None:
    """Allow `allowance` bytes of address space beyond what is mapped after the imports (Linux)."""
    if allowance is None or not os.path.exists("/proc/self/statm"):
        return
    import resource

    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    wanted = mapped + allowance
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def go_first() -> None:
    """Where the system runs out of memory it shall end this process, not the training run that started it."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def seal() -> None:
    """As far as this system can: no new file and no change to one, no other program, process or connection.

    The walls of the sandbox's layer L, for verifiers that judge text in this process: should an answer get
    a parser to run it, the damage ends here. What can be read is Python, its packages and /usr.
    """
    if not sys.platform.startswith("linux"):
        return
    from hardwon.verifiers.sandbox_inside import kernel

    if not kernel.landlock_version():
        return
    trees = {"/usr", "/lib", "/lib64", "/etc/ld.so.cache", sys.prefix, sys.base_prefix, *sys.path}
    with contextlib.suppress(OSError):
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.restrict_files(sorted(filter(os.path.exists, trees)))
        kernel.restrict_system_calls()


def encoded(kind: str, value: Any) -> bytes:
    """One JSON line; numbers of numpy and torch become floats."""
    try:
        return json.dumps([kind, value], default=float).encode() + b"\n"
    except (TypeError, ValueError) as error:
        return (
            json.dumps(["raised", f"result of type {type(value).__name__} refused: {error}"]).encode() + b"\n"
        )


def call(function: Any, arguments: tuple[Any, ...]) -> bytes:
    try:
        return encoded("done", function(*arguments))
    except MemoryError:
        return encoded("memory", "")
    except BaseException as error:  # sys.exit and KeyboardInterrupt in a verifier are its failures too
        return encoded("raised", f"{type(error).__name__}: {error}"[:500])


def wait_for_input(descriptor: int, parent: int) -> None:
    """Blocks until the parent has sent something; leaves if the parent is gone.

    End of input would say so too, but a process forked from the parent may hold the pipe open.
    """
    while not select.select([descriptor], [], [], ORPHAN_CHECK_SECONDS)[0]:
        if os.getppid() != parent:
            os._exit(0)


def serve(requests: int, replies: int) -> None:
    parent = os.getppid()
    paths, pickled_function, allowance, sealed = read_message(requests)
    sys.path[:] = paths
    go_first()
    try:
        function = pickle.loads(pickled_function)
        limit_memory(allowance)
        if sealed:
            seal()
    except Exception as error:
        os.write(replies, encoded("raised", f"{type(error).__name__}: {error}"))
        return
    os.write(replies, encoded("ready", None))
    # An untouched SIGALRM ends the process inside C code too, should the parent be killed meanwhile.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        wait_for_input(requests, parent)
        seconds, arguments = read_message(requests)
        signal.setitimer(signal.ITIMER_REAL, seconds + GRACE_SECONDS)
        reply = call(function, arguments)
        signal.setitimer(signal.ITIMER_REAL, 0)
        with open(replies, "wb", closefd=False) as stream:
            stream.write(reply)
        if reply.startswith(b'["memory"'):
            return


def main() -> None:
    """Keeps the reply pipe for itself: what a verifier prints goes nowhere."""
    replies = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    requests = os.dup(0)
    os.dup2(nowhere, 0)
    with contextlib.suppress(EOFError, BrokenPipeError):
        serve(requests, replies)
    os._exit(0)


if __name__ == "__main__":
    main()
