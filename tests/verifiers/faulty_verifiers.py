"""Verifiers that fail in every way a verifier can, for the tests: workers import this module by name."""

import os
import signal
import time
from pathlib import Path


def good(gold, response):
    return gold == response


def graded(gold, response):
    return float(response)


def faulty(gold, response):
    """Does what the response says."""
    if response == "hang":
        time.sleep(1000)
    if response == "hang in C":
        return 9**9**9 == 1
    if response == "raise":
        raise RuntimeError("no\nsuch table")
    if response == "exit":
        raise SystemExit(0)
    if response == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if response == "memory":
        return len(bytearray(8 << 30)) == 0
    if response == "print":
        print('["done", true]', flush=True)
    values = {
        "nan": float("nan"),
        "inf": float("inf"),
        "none": None,
        "text": "yes",
        "object": object(),
        "list": [1],
    }
    return values.get(response, gold == response)


def leaks(gold, response, kept=[]):  # noqa: B006 - the leak
    kept.append(b"x" * (40 << 20))
    return True


def crashes_once(folder, response):
    mark = Path(folder) / response
    if not mark.exists():
        mark.touch()
        os._exit(3)
    return True


def starts_a_child(folder, response):
    import subprocess

    child = subprocess.Popen(["sleep", "1000"])
    (Path(folder) / "child").write_text(str(child.pid))
    time.sleep(1000)


def modules(gold, response):
    import sys

    return {"correct": "torch" not in sys.modules, "message": "torch" if "torch" in sys.modules else ""}


def pid(gold, response):
    return os.getpid()


def reaches_out(folder, response):
    """What of the host it can get at, by name."""
    import socket
    import subprocess

    ways = {
        "write": lambda: open(f"{folder}/new", "w").close(),
        "read": lambda: open(f"{folder}/secret").close(),
        "connect": lambda: socket.socket().close(),
        "run": lambda: subprocess.run(["true"], check=False),
        "signal": lambda: os.kill(os.getppid(), 0),
        "look at its parent": lambda: open(f"/proc/{os.getppid()}/environ").close(),
        "find a key": lambda: os.environ["HARDWON_TEST_KEY"] and None,
        "compute": lambda: sum(range(10)),
    }
    done = []
    for name, way in ways.items():
        try:
            way()
            done.append(name)
        except (OSError, KeyError):
            pass
    return {"correct": True, "message": ", ".join(done)}


def order_of_dying(gold, response):
    return int(Path("/proc/self/oom_score_adj").read_text()) == 1000
