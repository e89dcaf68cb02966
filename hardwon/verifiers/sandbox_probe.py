"""Which layers hold on this machine, found by trying to break out; and the choice between them."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass

from hardwon.verifiers import sandbox_layers
from hardwon.verifiers.sandbox import Sandbox, SandboxError
from hardwon.verifiers.sandbox_layers import LayerName, Limits

PROBE = """
import json, os, socket
done = []
def attempt(name, action):
    try:
        action()
        done.append(name)
    except OSError:
        pass
attempt("read a file of the host", lambda: open("/etc/passwd").read())
attempt("list the host's files", lambda: os.listdir("/"))
attempt("write outside its directory", lambda: os.remove(open("../hardwon-probe", "w").name))
attempt("open a socket", socket.socket)
attempt("start a process", lambda: os.fork() or os._exit(0))
attempt("signal its parent", lambda: os.kill(os.getppid(), 0))
open("inside", "w").write("x")
print(json.dumps(done))
"""


@dataclass(frozen=True)
class Layer:
    """Whether a layer holds here: a probe ran inside it and could do nothing that it should not."""

    name: LayerName
    holds: bool
    reason: str


def probe(name: LayerName) -> Layer:
    try:
        run = Sandbox(name).run_program(PROBE)
    except SandboxError as error:
        return Layer(name, False, str(error))
    if run.ending != "exited" or run.exit_code != 0:
        return Layer(name, False, f"the probe failed: {run.message or run.stderr[-300:]!r}")
    escapes = json.loads(run.stdout)
    if escapes:
        return Layer(name, False, "the probe could " + ", ".join(escapes))
    return Layer(name, True, "the probe found no way out")


@functools.cache
def layers() -> tuple[Layer, ...]:
    """N and L, strongest first, each with whether it holds on this machine and why (about 0.1 s, once)."""
    return probe("N"), probe("L")


def open_sandbox(
    layer: str = "auto",
    limits: Limits | None = None,
    *,
    unsafe_no_isolation: bool = False,
    packages: Sequence[str] | None = None,
) -> Sandbox:
    """A sandbox of the strongest layer that holds, or of the one named "N" or "L".

    `unsafe_no_isolation` runs programs with resource limits only: they can read your files and use
    your network. `packages` can be imported there; default: numpy and sortedcontainers, where they are
    installed. ValueError if one is not installed, or if the layer asked for, or without it any layer,
    does not hold here.
    """
    limits = limits or Limits()
    if packages is None:
        packages = sandbox_layers.usual_packages()
    opened = (packages,) if isinstance(packages, str) else tuple(packages)
    sandbox_layers.package_paths(opened)  # an unknown one is named before anything runs
    if unsafe_no_isolation:
        if layer != "auto":
            raise ValueError(f"unsafe_no_isolation=True contradicts sandbox={layer!r}; set one of the two")
        return Sandbox("none", limits, opened)
    if layer not in ("auto", "N", "L"):
        raise ValueError(f"sandbox={layer!r} is unknown; choose auto, N or L")
    tried = [found for found in layers() if layer in ("auto", found.name)]
    for found in tried:
        if found.holds:
            return Sandbox(found.name, limits, opened)
    reasons = "; ".join(f"{found.name}: {found.reason}" for found in tried)
    raise ValueError(
        f"sandbox={layer!r}: no such isolation holds on this machine ({reasons}). "
        "Install bubblewrap, use Linux 5.13 or newer, or set unsafe_no_isolation=true"
    )
