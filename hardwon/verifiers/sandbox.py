"""Run one program that a model wrote, behind walls, with bounds on all that it can take.

`Sandbox` chooses the layer, `Child` is one process in it. The parent writes, reads and counts; it
never imports, evaluates or unpickles anything that comes back.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import IO, Any, Literal

from hardwon.verifiers import sandbox_layers
from hardwon.verifiers.sandbox_layers import LayerName, Limits

Ending = Literal["exited", "timeout", "limit", "killed"]

POLL_SECONDS = 0.05
CHUNK = 1 << 16


class SandboxError(RuntimeError):
    """The sandbox failed, not the program: no process, or no walls."""


@dataclass(frozen=True)
class Run:
    """How a program ended. `killed` is a SIGKILL that we did not send (in N: or exit status 137)."""

    ending: Ending
    exit_code: int
    stdout: bytes
    stderr: bytes
    seconds: float
    message: str = ""


@dataclass(frozen=True)
class Sandbox:
    """`layer` is "N" or "L" (see sandbox_layers), or "none" for a program that you would run yourself.

    `packages` can be imported beside the standard library.
    """

    layer: LayerName
    limits: Limits = field(default_factory=Limits)
    packages: tuple[str, ...] = field(default_factory=sandbox_layers.usual_packages)

    def with_output(self, size: int) -> Sandbox:
        """The same, where a program may put out `size` bytes at least."""
        if size <= self.limits.output_bytes:
            return self
        return replace(self, limits=replace(self.limits, output_bytes=size))

    def run_program(self, source: str, stdin: bytes = b"", *, provided: bool = False) -> Run:
        """Run `source` as __main__ to its end. SandboxError if it could not be started.

        `provided` gives it the names of sandbox_inside.provided.
        """
        with Child(self, {"mode": "program", "source": source, "provided": provided}, stdin) as child:
            child.pump(lambda: False)
            return child.result()

    def start(self, job: dict[str, Any]) -> Child:
        """A process for a conversation (modes "functions" and "check" of the shim)."""
        return Child(self, job)


class Child:
    """One sandboxed process, its pipes, its deadline. Leaving the `with` block kills all of it.

    The deadline and the CPU limit cover the whole life of the process. `ending` is None while it runs.
    `companion` is another one whose limits are watched as well while this one is waited for.
    """

    companion: Child | None = None

    def __init__(self, sandbox: Sandbox, job: dict[str, Any], stdin: bytes = b"") -> None:
        self.layer, self.limits, self.packages = sandbox.layer, sandbox.limits, sandbox.packages
        self.ending: Ending | None = None
        self.message = ""
        self.output = {"stdout": bytearray(), "stderr": bytearray(), "control": bytearray()}
        self.counts = dict.fromkeys(self.output, 0)
        self.ready = False
        self.started = time.monotonic()
        self.deadline = self.started + self.limits.start_seconds
        with contextlib.ExitStack() as undo:  # no descriptors, processes or room: not the program's fault
            try:
                self.begin(undo)
            except OSError as error:
                raise SandboxError(f"layer {self.layer} could not start a process: {error}") from error
            undo.pop_all()
        self.open_streams(job, stdin)

    def begin(self, undo: contextlib.ExitStack) -> None:
        """The directory, the pipes and the process; `undo` holds what to take back if one of them fails."""
        self.host_work = tempfile.mkdtemp(prefix="hardwon-")
        undo.callback(shutil.rmtree, self.host_work, ignore_errors=True)
        here = os.path.realpath(self.host_work)
        self.work = sandbox_layers.WORK_IN_NAMESPACE if self.layer == "N" else here
        if os.geteuid() == 0 and self.layer == "L":
            os.chown(self.host_work, sandbox_layers.NOBODY, sandbox_layers.NOBODY)
        self.selector = selectors.DefaultSelector()
        undo.callback(self.selector.close)
        reader, writer = os.pipe()
        control = undo.enter_context(os.fdopen(reader, "rb", buffering=0))
        try:
            self.process = self.spawn(writer)
        finally:
            os.close(writer)
        self.streams: dict[str, IO[bytes]] = {"control": control}

    def spawn(self, control: int) -> subprocess.Popen[bytes]:
        if self.layer == "N":
            command = sandbox_layers.bubblewrap_command(self.limits, self.work, control, self.packages)
        else:
            command = sandbox_layers.python_command(control)
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=self.host_work,
            env=sandbox_layers.environment(self.work),
            start_new_session=True,
            pass_fds=(control,),
        )

    def open_streams(self, job: dict[str, Any], stdin: bytes) -> None:
        process = self.process
        assert process.stdin and process.stdout and process.stderr
        self.streams |= {"stdin": process.stdin, "stdout": process.stdout, "stderr": process.stderr}
        for name, stream in self.streams.items():
            os.set_blocking(stream.fileno(), False)
            if name != "stdin":
                self.selector.register(stream, selectors.EVENT_READ, name)
        around = {
            "seal": sandbox_layers.seal(self.layer, self.limits, self.packages),
            "path": sandbox_layers.library_path(),
            "packages": {name: sandbox_layers.package_origin(name) for name in self.packages},
        }
        data = json.dumps({**job, **around}).encode()
        self.pending = memoryview(len(data).to_bytes(8, "big") + data + stdin)
        self.close_stdin = job["mode"] == "program"
        self.selector.register(process.stdin, selectors.EVENT_WRITE, "stdin")
        self.pump(lambda: self.ready)
        if not self.ready:
            message = f"layer {self.layer} did not come up: {self.message or bytes(self.output['stderr'])!r}"
            self.close()
            raise SandboxError(message[-1000:])

    def pump(self, until: Callable[[], bool]) -> None:
        """Move data until `until()`, the program's end, or a limit."""
        next_look = 0.0
        while self.ending is None and not until():
            now = time.monotonic()
            if now >= self.deadline:
                self.stop("timeout", f"no end after {now - self.started:.1f} s")
                return
            if now >= next_look:
                next_look = now + POLL_SECONDS
                self.watch()
                if self.companion is not None:
                    self.companion.watch()
            reading = any(key.data != "stdin" for key in self.selector.get_map().values())
            if self.process.poll() is not None:
                self.drain()
                self.conclude()
            elif reading:
                for key, _ in self.selector.select(min(POLL_SECONDS, self.deadline - now)):
                    self.move(key.data)
            else:  # it closed its outputs but has not ended
                time.sleep(0.001)

    def drain(self) -> None:
        """What an ended process left in the pipes; another holder of the pipe does not keep us."""
        for name in ("control", "stdout", "stderr"):
            while self.streams[name] in self.registered() and self.move(name):
                pass

    def registered(self) -> list[Any]:
        return [key.fileobj for key in self.selector.get_map().values()]

    def move(self, name: str) -> bool:
        """Write or read once. False if nothing moved."""
        stream = self.streams[name]
        if name == "stdin":
            return self.write_some()
        try:
            data = os.read(stream.fileno(), CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.selector.unregister(stream)
            return False
        self.counts[name] += len(data)
        if self.counts[name] > self.limits.output_bytes:
            self.stop("limit", f"more than {self.limits.output_bytes} bytes of {name}")
            return False
        self.output[name] += data
        if not self.ready and self.output["control"].startswith(b"ready\n"):
            self.ready = True
            del self.output["control"][:6]
            self.started = time.monotonic()
            self.deadline = self.started + self.limits.wall_seconds
        return True

    def write_some(self) -> bool:
        stream = self.streams["stdin"]
        try:
            self.pending = self.pending[os.write(stream.fileno(), self.pending[:CHUNK]) :]
        except BlockingIOError:
            return False
        except BrokenPipeError:  # it does not read its input: no fault
            self.pending = memoryview(b"")
        if not self.pending:
            self.selector.unregister(stream)
            if self.close_stdin:
                stream.close()
        return True

    def watch(self) -> None:
        """Limits that the kernel does not keep in layer L: threads, and all files together."""
        if self.layer != "L" or not self.ready or self.ending is not None:
            return
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{self.process.pid}/status") as status:
                threads = int(status.read().split("Threads:")[1].split()[0])
            if threads > self.limits.threads:
                self.stop("limit", f"{threads} threads, allowed are {self.limits.threads}")
        with contextlib.suppress(OSError):
            entries = list(os.scandir(self.host_work))
            used = sum(max(4096, entry.stat(follow_symlinks=False).st_size) for entry in entries)
            if used > self.limits.work_bytes:
                self.stop("limit", f"{used} bytes of files, allowed are {self.limits.work_bytes}")

    def stop(self, ending: Ending, message: str) -> None:
        self.ending, self.message = ending, message
        self.kill()

    def conclude(self) -> None:
        """The ending of a process that ended by itself, or by a limit of the kernel."""
        if self.ending is not None:
            return
        code = self.process.returncode
        code = code - 128 if self.layer == "N" and code > 128 else -code  # bubblewrap passes 128 + signal
        seconds = time.monotonic() - self.started
        if code == signal.SIGXCPU or (code == signal.SIGKILL and seconds >= self.limits.cpu_seconds):
            self.ending, self.message = "timeout", f"more than {self.limits.cpu_seconds} s of CPU time"
        elif code == signal.SIGKILL:
            self.ending, self.message = "killed", "killed from outside; by the system, for memory?"
        else:
            self.ending = "exited"

    def send_line(self, line: bytes) -> None:
        """Queue one line for the conversation modes; `pump` writes it."""
        idle = not self.pending
        self.pending = memoryview(bytes(self.pending) + line + b"\n")
        if idle:
            self.selector.register(self.streams["stdin"], selectors.EVENT_WRITE, "stdin")

    def receive(self) -> bytes | None:
        """The next line of the conversation; None if the process ended or met a limit before."""
        control = self.output["control"]
        self.pump(lambda: b"\n" in control)
        line, newline, rest = bytes(control).partition(b"\n")
        if not newline:
            return None
        control[:] = rest
        self.counts["control"] = len(rest)  # the output limit is for one line, not the conversation
        return line

    def result(self) -> Run:
        assert self.ending is not None
        stdout, stderr = bytes(self.output["stdout"]), bytes(self.output["stderr"])
        seconds = time.monotonic() - self.started
        code = self.process.returncode if self.ending == "exited" else -1
        return Run(self.ending, code, stdout, stderr, seconds, self.message)

    def kill(self) -> None:
        """The whole group: in N that ends the process namespace, in L there is only one process."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.kill()
        self.selector.close()
        for stream in self.streams.values():
            with contextlib.suppress(OSError):
                stream.close()
        shutil.rmtree(self.host_work, ignore_errors=True)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
