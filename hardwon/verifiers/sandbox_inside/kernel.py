"""Limits and walls that the kernel keeps: resource limits, a bare user, Landlock, seccomp (Linux).

Each function takes something away from the calling process for good, and raises OSError when the
kernel refuses, so that a program never starts behind a wall that is not there.
Sources: the manual pages setrlimit(2), capabilities(7), landlock(7), seccomp(2).
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
from collections.abc import Iterable

libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 8, 22, 38
SIGABRT, SIGKILL, EPERM, ENOSYS = 6, 9, 1, 38
CLONE_NEWUSER = 0x10000000
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2
STACK_BYTES = 120 << 20  # the kernel leaves at least 128 MiB between the stack and what is mapped below it


def check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, value: int) -> None:
    check(libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def set_limits(*, memory_bytes: int, cpu_seconds: int, file_bytes: int, open_files: int) -> None:
    """Hard limits of this process; one more CPU second stands between SIGXCPU and SIGKILL.

    The stack may grow to what the address space above it holds on Linux, for deep recursion.
    """
    wanted = {
        resource.RLIMIT_AS: (memory_bytes, memory_bytes),
        resource.RLIMIT_CPU: (cpu_seconds, cpu_seconds + 1),
        resource.RLIMIT_FSIZE: (file_bytes, file_bytes),
        resource.RLIMIT_NOFILE: (open_files, open_files),
        resource.RLIMIT_CORE: (0, 0),
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_STACK: (STACK_BYTES, STACK_BYTES),
    }
    for kind, (soft, hard) in wanted.items():
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))


def drop_root(uid: int, *, keep_reading: bool) -> None:
    """From root to `uid` without privileges; nothing to do for an ordinary user.

    `keep_reading` keeps the one capability that reads past file modes, for an interpreter in a
    directory that only root may enter; `restrict_files` then confines what can be read.
    """
    if os.geteuid() != 0:
        return
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    prctl(PR_SET_KEEPCAPS, int(keep_reading))
    os.setresuid(uid, uid, uid)
    if not keep_reading:
        set_capabilities(0)
        return
    try:
        set_capabilities(1 << CAP_DAC_READ_SEARCH)
    except OSError:  # common containers grant only the wider one
        set_capabilities(1 << CAP_DAC_OVERRIDE)


def set_capabilities(mask: int) -> None:
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this thread
    data = struct.pack("=IIIIII", mask, mask, 0, 0, 0, 0)
    check(libc.capset(header, data), "capset")


def limit_tasks(count: int) -> None:
    """At most `count` processes and threads, in a user namespace of our own: elsewhere the limit
    counts everything that the user runs."""
    resource.setrlimit(resource.RLIMIT_NPROC, (count, count))


def own_user_namespace() -> None:
    check(libc.unshare(CLONE_NEWUSER), "unshare user namespace")
    set_capabilities(0)


def forbid_new_privileges() -> None:
    """No setuid programs, no debugger from outside, and no life after the parent's end."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_PDEATHSIG, SIGKILL)


# Landlock: system calls 444 to 446 on every architecture.
READ_FILE, WRITE_FILE, READ_DIR, MAKE_REG, TRUNCATE = 1 << 2, 1 << 1, 1 << 3, 1 << 8, 1 << 14
READ = READ_FILE | READ_DIR
WORK = READ | WRITE_FILE | MAKE_REG | TRUNCATE  # not REMOVE_FILE, see `filter_program`
ON_FILES = READ_FILE | WRITE_FILE | TRUNCATE


def landlock_version() -> int:
    """The kernel's Landlock version, or 0 if it has none."""
    return max(0, int(libc.syscall(444, None, ctypes.c_size_t(0), 1)))


def restrict_files(readable: Iterable[str], listable: Iterable[str] = (), work: str | None = None) -> None:
    """Only the trees `readable` can be opened, and only in `work` can files be made and written.

    Of the trees `listable` only the names can be read. Nothing can be deleted or renamed.

    No TCP from version 4, and no signals or abstract sockets to the outside from version 6.
    """
    version = landlock_version()
    handled = (1 << (13 if version < 2 else 14 if version < 3 else 15 if version < 5 else 16)) - 1
    attributes = struct.pack("=QQQ", handled, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = check(libc.syscall(444, attributes, ctypes.c_size_t(len(attributes)), 0), "landlock ruleset")
    rules = [(path, READ) for path in readable] + [(path, READ_DIR) for path in listable]
    rules += [("/dev/null", READ_FILE | WRITE_FILE)] + ([(work, WORK)] if work else [])
    for path, rights in rules:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        if not os.path.isdir(path):
            rights &= ON_FILES
        rule = struct.pack("=Qi", rights & handled, descriptor)
        check(libc.syscall(445, ruleset, 1, rule, 0), f"landlock rule for {path}")
        os.close(descriptor)
    check(libc.syscall(446, ruleset, 0), "landlock restrict")
    os.close(ruleset)


# What an interpreter needs once it runs. Everything else is refused: sockets, new processes, other
# processes' memory and signals, file modes and owners, links, directories, shared memory, io_uring.
SYSTEM_CALLS = {
    "x86_64": (
        0xC000003E,
        {
            *(0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),  # read ... rt_sigreturn
            *(17, 18, 19, 20, 21, 22, 23, 24, 25, 28, 32, 33, 35, 37, 38, 39, 60, 63),  # pread64 ... uname
            *(74, 75, 77, 79, 89, 96, 97, 98, 99, 100, 102, 104, 107, 108, 110, 115, 131),
            *(186, 202, 204, 217, 218, 219, 221, 228, 229, 230, 231, 262, 267, 269),
            *(270, 271, 273, 292, 293, 318, 324, 332, 334, 439),  # pselect6 ... faccessat2
        },
        {
            "open": 2,
            "ioctl": 16,
            "clone": 56,
            "fcntl": 72,
            "unlink": 87,
            "tgkill": 234,
            "openat": 257,
            "unlinkat": 263,
            "prlimit64": 302,
            "clone3": 435,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            *(17, 23, 24, 46, 48, 57, 59, 61, 62, 63, 64, 65, 66, 67, 68, 72, 73, 78, 79, 80),
            *(82, 83, 93, 94, 96, 98, 99, 101, 103, 113, 114, 115, 123, 124, 128, 132, 134, 135, 139),
            *(153, 158, 160, 163, 165, 169, 172, 173, 174, 175, 176, 177, 178, 179, 214, 215, 216),
            *(222, 223, 226, 233, 278, 283, 291, 293, 439),
        },
        {
            "fcntl": 25,
            "ioctl": 29,
            "openat": 56,
            "tgkill": 131,
            "clone": 220,
            "prlimit64": 261,
            "clone3": 435,
        },
    ),
}

THREAD_FLAGS = (0x3D0F00, 0x7D0F00)  # pthread_create of glibc and of musl
IOCTLS = (0x5401, 0x5421, 0x541B, 0x5451, 0x5450)  # TCGETS, FIONBIO, FIONREAD, FIOCLEX, FIONCLEX
FCNTLS = (0, 1, 2, 3, 4, 1030)  # duplicate and flags; no F_SETOWN, which sends signals to others

O_WRITE, O_TRUNC, O_TMPFILE = 0o3, 0o1000, 0o20000000  # O_WRITE: O_WRONLY and O_RDWR

LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000


def filter_program(machine: str, pid: int) -> bytes:
    """The BPF program (struct sock_filter, 8 bytes each) for `machine` as platform.machine() names it."""
    audit_arch, allowed, special = SYSTEM_CALLS[machine]
    argument = [16 + 8 * index for index in range(6)]  # low words; struct seccomp_data, little endian

    def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    def unless(code: int, value: int, body: bytes) -> bytes:  # skip `body` if the comparison fails
        return instruction(code, value, 0, len(body) // 8) + body

    actions = (ALLOW, REFUSE | EPERM, REFUSE | 0, KILL)
    allow, refuse, pretend, kill = (instruction(RETURN, action) for action in actions)

    def one_of(index: int, values: Iterable[int]) -> bytes:
        tests = b"".join(unless(EQUAL, value, allow) for value in values)
        return instruction(LOAD, argument[index]) + tests + refuse

    def opening(index: int) -> bytes:
        """No file without a name, which nobody could count; no O_RDONLY | O_TRUNC, which empties a file
        that Landlock before version 3 took for one that is only read."""
        return (
            instruction(LOAD, argument[index])
            + instruction(ANY_BIT, O_TMPFILE, 3, 0)
            + instruction(ANY_BIT, O_TRUNC, 0, 1)
            + instruction(ANY_BIT, O_WRITE, 0, 1)
            + allow
            + refuse
        )

    abort_only = instruction(LOAD, argument[0]) + unless(EQUAL, pid, one_of(2, (SIGABRT,))) + refuse
    bodies = {
        "open": opening(1),
        "openat": opening(2),
        "unlink": pretend,  # what is deleted but open could not be counted; tempfile wants to delete
        "unlinkat": pretend,
        "ioctl": one_of(1, IOCTLS),
        "fcntl": one_of(1, FCNTLS),
        "clone": one_of(0, THREAD_FLAGS),
        "tgkill": abort_only,
        "prlimit64": one_of(0, (0,)),  # of itself: hard limits only fall
        "clone3": instruction(RETURN, REFUSE | ENOSYS),  # its flags lie in memory; libc falls back to clone
    }
    program = instruction(LOAD, 4) + instruction(EQUAL, audit_arch, 1, 0) + kill + instruction(LOAD, 0)
    if machine == "x86_64":
        program += unless(AT_LEAST, 0x40000000, kill)  # the x32 calls
    program += b"".join(unless(EQUAL, number, allow) for number in sorted(allowed))
    program += b"".join(
        unless(EQUAL, special[name], body) for name, body in bodies.items() if name in special
    )
    return program + refuse


def restrict_system_calls() -> None:
    """Seccomp filter on this thread and all it starts: a fixed list of calls; the rest fail with EPERM."""
    machine = platform.machine()
    if machine not in SYSTEM_CALLS:
        raise OSError(ENOSYS, f"no list of system calls for {machine}; there is one for x86_64 and aarch64")
    program = ctypes.create_string_buffer(filter_program(machine, os.getpid()))
    header = struct.pack("HP", len(program) // 8, ctypes.addressof(program))  # struct sock_fprog
    check(libc.prctl(PR_SET_SECCOMP, 2, header, 0, 0), "seccomp filter")
