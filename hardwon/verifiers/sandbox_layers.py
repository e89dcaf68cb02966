"""The layers of isolation: how each starts an interpreter, and which of them hold on this machine.

    N       namespaces by bubblewrap (own processes, network, file tree), and all of L inside
    L       resource limits, Landlock and a seccomp filter: no namespaces, no root, no package needed
    none    resource limits only: stops accidents, not attacks

The model's program gets one process in either, so that a verdict does not depend on the layer.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import sys
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

LayerName = Literal["N", "L", "none"]

INSIDE = str(Path(__file__).resolve().parent / "sandbox_inside")
NOBODY = 65534
WORK_IN_NAMESPACE = "/sandbox"
HEADROOM = 8  # tasks that are not the program's: bubblewrap and its first process
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); import shim; shim.main(int(sys.argv[2]))"


@dataclass(frozen=True)
class Limits:
    """Of one program. Wall-clock time counts from when the walls stand; `work_bytes` is for all files."""

    wall_seconds: float = 10.0
    cpu_seconds: int = 5
    memory_bytes: int = 1 << 30
    file_bytes: int = 16 << 20
    work_bytes: int = 64 << 20
    output_bytes: int = 4 << 20
    open_files: int = 64
    threads: int = 16
    start_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise ValueError(f"limit {name}={value} must be positive")


@functools.cache
def interpreter() -> str:
    """The interpreter itself, not the virtual environment's link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


@functools.cache
def library_path() -> tuple[str, ...]:
    """sys.path of the program: the standard library only."""
    extensions = sysconfig.get_config_var("DESTSHARED") or ""
    paths = [os.path.dirname(os.path.realpath(os.__file__)), os.path.realpath(extensions)]
    return tuple(path for path in paths if os.path.isdir(path))


@functools.cache
def readable() -> tuple[str, ...]:
    """What the interpreter needs of the host: itself, its library, the system's shared libraries."""
    candidates = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"]
    candidates += [interpreter(), *library_path()]
    shared = sysconfig.get_config_var("INSTSONAME") or ""
    candidates.append(os.path.join(sysconfig.get_config_var("LIBDIR") or "", shared))
    found: list[str] = []
    for path in candidates:
        inside_another = any(path.startswith(other + "/") for other in found)
        if os.path.exists(path) and not inside_another and path not in found:
            found.append(path)
    return tuple(found)


PACKAGES = ("site-packages", "dist-packages")


@functools.cache
def installed() -> tuple[str, ...]:
    """Directories of packages within the standard library: ours may be there, with its tests' answers."""
    library = library_path()[0]
    if (
        library not in readable()
    ):  # a part of the system's own tree: what is there belongs to the distribution
        return ()
    return tuple(path for name in PACKAGES if os.path.isdir(path := os.path.join(library, name)))


USUAL_PACKAGES = ("numpy", "sortedcontainers")


@functools.cache
def usual_packages() -> tuple[str, ...]:
    """Those of USUAL_PACKAGES that are installed here."""
    return tuple(name for name in USUAL_PACKAGES if importlib.util.find_spec(name))


@functools.cache
def package_origin(name: str) -> str:
    """The file that `import name` runs. ValueError if there is none."""
    try:
        spec = None if "." in name else importlib.util.find_spec(name)
    except ValueError:
        spec = None
    if spec is None or not spec.origin or not os.path.isabs(spec.origin):
        raise ValueError(
            f"packages: {name!r} is no installed package or module; name it as in `import`, for example numpy"
        )
    return os.path.realpath(spec.origin)


@functools.cache
def package_paths(names: tuple[str, ...]) -> tuple[str, ...]:
    """What importing the packages needs of the host: each one's tree or file, and the shared libraries
    that a wheel keeps beside it in NAME.libs."""
    paths: list[str] = []
    for name in names:
        origin = Path(package_origin(name))
        tree = origin.parent if origin.stem == "__init__" else origin
        libraries = tree.parent / f"{name}.libs"
        paths += [str(tree)] + [str(libraries)] * libraries.is_dir()
    return tuple(paths)


@functools.cache
def granted() -> tuple[str, ...]:
    """`readable` for Landlock, which cannot take a part off a tree: the library's entries one by one."""
    library = library_path()[0]
    if not installed():
        return readable()
    entries = (entry.path for entry in os.scandir(library) if entry.name not in PACKAGES)
    return tuple(path for path in readable() if path != library) + tuple(sorted(entries))


def readable_by_nobody(packages: tuple[str, ...] = ()) -> bool:
    """Whether every directory above the standard library and the packages lets an ordinary user through."""
    library = Path(library_path()[0])
    above = {library, *library.parents}.union(*(Path(path).parents for path in package_paths(packages)))
    return all(directory.stat().st_mode & 0o001 for directory in above)


def environment(work: str) -> dict[str, str]:
    """All that the program sees of the environment. A fixed hash seed makes verdicts repeatable."""
    return {
        "HOME": work,
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",  # numpy's libraries would start a thread for each core
        "OPENBLAS_NUM_THREADS": "1",
        "PATH": "/usr/bin:/bin",
        "PYTHONHASHSEED": "0",
        "TMPDIR": work,
    }


def seal(layer: LayerName, limits: Limits, packages: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the shim shall do before the program runs (`sandbox_inside.shim.seal`)."""
    root = os.geteuid() == 0
    walls = {
        "N": ["user", "files", "system calls", "tasks"],
        "L": ["user", "files", "system calls"],
        "none": [],
    }
    chosen = list(walls[layer])
    if layer == "N" and not has_landlock():
        chosen.remove("files")  # the file tree is bubblewrap's
    if layer == "N" and root:
        chosen.append("own user namespace")  # an ordinary user got one from bubblewrap
    return {
        "limits": {
            "memory_bytes": limits.memory_bytes,
            "cpu_seconds": limits.cpu_seconds,
            "file_bytes": limits.file_bytes,
            "open_files": limits.open_files,
        },
        "walls": chosen,
        "uid": NOBODY,
        "keep_reading": layer == "L" and root and not readable_by_nobody(packages),
        "tasks": limits.threads + HEADROOM,
        "readable": [*granted(), *package_paths(packages)],
        "listable": [library_path()[0]] if installed() else [],
    }


def has_landlock() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    from hardwon.verifiers.sandbox_inside import kernel

    return kernel.landlock_version() > 0


def python_command(control: int) -> list[str]:
    return [interpreter(), "-sSB", "-X", "utf8", "-c", BOOT, INSIDE, str(control)]


def bubblewrap_command(limits: Limits, work: str, control: int, packages: tuple[str, ...] = ()) -> list[str]:
    """An empty file tree with the interpreter in it, read-only, and one small writable directory."""
    command = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session", "--clearenv"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() == 0:  # the shim becomes nobody: limits on tasks never bind root, not even in a namespace
        for capability in ("CAP_SETUID", "CAP_SETGID"):
            command += ["--cap-add", capability]
    else:
        command += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    for name, value in environment(work).items():
        command += ["--setenv", name, value]
    shown = (*readable(), INSIDE)
    opened = package_paths(packages)
    parents = (parent for path in (*shown, *opened, "/dev/null") for parent in Path(path).parents)
    directories = set(map(str, parents)) - {"/"}
    for directory in sorted(directories):  # bubblewrap would make them for root alone
        command += ["--perms", "0755", "--dir", directory]
    for path in shown:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        else:
            command += ["--ro-bind", path, path]
    for path in installed():
        command += ["--tmpfs", path]
    for path in opened:
        command += ["--ro-bind", path, path]
    for path in installed():
        command += ["--remount-ro", path]
    command += ["--dev-bind", "/dev/null", "/dev/null"]
    command += ["--perms", "1777", "--size", str(limits.work_bytes), "--tmpfs", work]
    return [*command, "--remount-ro", "/", "--chdir", work, "--", *python_command(control)]
