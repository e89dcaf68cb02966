"""Programs that try to leave the sandbox or to take more than their share, one kind each.

A program prints "escaped" if it got what it wanted, so it stays silent behind walls that hold. `HOST`
(made by `host_targets`) is what an attacker may know: a pid, paths, ports.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECRET = "hardwon-secret-4711"

PRELUDE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(action):
    try:
        result = action()
    except (OSError, MemoryError, ValueError, RuntimeError, IndexError) as error:
        print("refused", type(error).__name__, error)
        return None
    print("escaped", repr(result)[:80])
    return result
def call(number, *arguments):
    result = libc.syscall(number, *[ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""

WANTS_OUT = {
    "read /etc/passwd": "attempt(lambda: open('/etc/passwd').read())",
    "list the root directory": "attempt(lambda: 'etc' in os.listdir('/') or 1 / 0)",
    "read a world-readable file of the user": "attempt(lambda: open(HOST['secret']).read())",
    "read it through a symbolic link": """
def through_link():
    os.symlink(HOST['secret'], 'link')
    return open('link').read()
attempt(through_link)""",
    "read it through a hard link": """
def through_link():
    os.link(HOST['secret'], 'link')
    return open('link').read()
attempt(through_link)""",
    "write next to its directory": "attempt(lambda: open(HOST['folder'] + '/written', 'w').write('x'))",
    "write into the interpreter's library": "attempt(lambda: open(os.__file__ + '.new', 'w'))",
    "delete a file of the host": """
def delete():
    os.stat(HOST['victim'])
    os.remove(HOST['victim'])
    if os.path.exists(HOST['victim']): raise OSError('still there')
attempt(delete)""",
    "rename a file of the host": "attempt(lambda: os.rename(HOST['victim'], HOST['victim'] + '2'))",
    "truncate a file of the host": "attempt(lambda: os.truncate(HOST['victim'], 0))",
    "change a host file's mode": "attempt(lambda: os.chmod(HOST['victim'], 0o777))",
    "change a host file's times": "attempt(lambda: os.utime(HOST['victim'], (0, 0)))",
    "read the parent's environment": "attempt(lambda: open(f\"/proc/{HOST['pid']}/environ\", 'rb').read())",
    "read the parent's memory file": "attempt(lambda: open(f\"/proc/{HOST['pid']}/mem\", 'rb'))",
    "read the parent's memory by system call": """
buffer = ctypes.create_string_buffer(8)
local = (ctypes.c_ulong * 2)(ctypes.addressof(buffer), 8)
remote = (ctypes.c_ulong * 2)(HOST['address'], 8)
def peek():
    if libc.process_vm_readv(HOST['pid'], local, 1, remote, 1, 0) < 0:
        raise OSError(ctypes.get_errno(), 'process_vm_readv')
attempt(peek)""",
    "trace the parent": """
def trace():
    if libc.ptrace(0x4206, HOST['pid'], 0, 0) < 0:  # PTRACE_SEIZE
        raise OSError(ctypes.get_errno(), 'ptrace')
    libc.ptrace(17, HOST['pid'], 0, 0)
attempt(trace)""",
    "signal the parent": "attempt(lambda: os.kill(HOST['pid'], 0))",
    "signal everyone": "attempt(lambda: os.kill(-1, 0))",
    "signal the parent through a pidfd": """
import signal
attempt(lambda: signal.pidfd_send_signal(os.pidfd_open(HOST['pid']), 0))""",
    "signal the parent through a file's owner": """
import fcntl
attempt(lambda: fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, HOST['pid']))""",
    "lower the parent's limits": """
import resource
attempt(lambda: resource.prlimit(HOST['pid'], resource.RLIMIT_CORE, (0, 0)))""",
    "slow the parent down": "attempt(lambda: os.setpriority(os.PRIO_PROCESS, HOST['pid'], 19))",
    "pin the parent to one core": "attempt(lambda: os.sched_setaffinity(HOST['pid'], {0, 1}))",
    "connect to a port of the host": """
import socket
attempt(lambda: socket.create_connection(('127.0.0.1', HOST['port']), 2))""",
    "send a datagram": """
import socket
attempt(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', HOST['port'])))""",
    "connect to an abstract socket of the host": """
import socket
attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0' + HOST['abstract']))""",
    "connect to a socket file of the host": """
import socket
attempt(lambda: socket.socket(socket.AF_UNIX).connect(HOST['socket']))""",
    "ask the kernel over netlink": """
import socket
attempt(lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))""",
    "start a shell": """
import subprocess
attempt(lambda: subprocess.run(['/bin/sh', '-c', 'true']))""",
    "become another program": """
attempt(lambda: os.execv('/bin/echo', ['echo', 'escaped']))""",
    "start a process": "attempt(lambda: os.fork() or os._exit(0))",
    "leave a daemon behind": """
import time
def daemonize():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for descriptor in range(3):
                os.close(descriptor)
            time.sleep(1)
            open(HOST['folder'] + '/daemon', 'w')
            time.sleep(20)
        os._exit(0)
    return 'daemon'
attempt(daemonize)""",
    "leave the process group": "attempt(lambda: os.setpgid(0, 0) or os.setsid())",
    "become root": "attempt(lambda: os.setuid(0))",
    "become another user": "attempt(lambda: os.setuid(1))",
    "make a user namespace": "attempt(lambda: call(272, 0x10000000))",
    "mount a file system": "attempt(lambda: libc.mount(b'none', b'.', b'tmpfs', 0, None) == 0 or 1 / 0)",
    "change the root directory": "attempt(lambda: os.chroot('.'))",
    "use a descriptor that the parent forgot": """
inherited = []
for descriptor in range(3, 256):
    try:
        inherited.append(os.fstat(descriptor))
    except OSError:
        pass
attempt(lambda: inherited[0])""",
    "open a file by its handle": """
def by_handle():
    handle = ctypes.create_string_buffer(b'\\x08\\0\\0\\0\\x01\\0\\0\\0\\x02\\0\\0\\0\\0\\0\\0\\0')
    return call(304, os.open(HOST['open'], os.O_RDONLY), ctypes.addressof(handle), 0)
attempt(by_handle)""",
    "raise its own limits": """
import resource
attempt(lambda: resource.setrlimit(resource.RLIMIT_CPU, (1000, 1000)))""",
    "make an io_uring": "attempt(lambda: call(425, 4, ctypes.addressof(ctypes.create_string_buffer(120))))",
    "load a BPF program": """
attributes = ctypes.create_string_buffer(bytes([1, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4]), 120)  # an array map
attempt(lambda: call(321, 0, ctypes.addressof(attributes), 120))""",
    "add a kernel key": "attempt(lambda: call(248, b'user', b'x', b'y', 1, (1 << 64) - 3))",
    "memory that no limit counts (memfd)": "attempt(lambda: os.memfd_create('x'))",
    "memory that no limit counts (System V)": "attempt(lambda: call(29, 0, 1 << 24, 0o1600))",
    "type into the terminal": """
import fcntl
attempt(lambda: fcntl.ioctl(0, 0x5412, b'x'))""",
    "system calls of the x32 interface": "attempt(lambda: call(0x40000000 + 41, 1, 1, 0))",
    "system calls of 32-bit code": """
import mmap
memory = mmap.mmap(-1, 4096, prot=7)
memory.write(bytes.fromhex('53b814000000cd805bc3'))  # getpid by int 0x80
entry = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
attempt(entry)""",
    "find a secret in the environment": f"attempt(lambda: [*os.environ.values()].remove('{SECRET}'))",
    "find files in its directory": "attempt(lambda: os.listdir('.')[0])",
}

TAKES_TOO_MUCH = {
    "endless loop": ("while True: pass", "timeout"),
    "endless loop that ignores signals": (
        "import signal\nfor n in range(1, 32):\n"
        "    if n not in (9, 19): signal.signal(n, signal.SIG_IGN)\nwhile True: pass",
        "timeout",
    ),
    "endless loop in C code": ("sum(iter(int, 1))", "timeout"),
    "sleep": ("import time; time.sleep(60)", "timeout"),
    "sleep with its outputs closed": ("import os, time; os.close(1); os.close(2); time.sleep(60)", "timeout"),
    "four gigabytes of memory": ("x = bytearray(4 << 30); print('escaped')", "exited"),
    "memory bit by bit": ("x = []\nwhile True: x.append(bytes(1 << 20))", "exited"),
    "a power tower": ("print(len(str(9**9**9**9)))", "timeout"),
    "a gigabyte of output": ("while True: print('x' * 100000)", "limit"),
    "a gigabyte of errors": ("import sys\nwhile True: sys.stderr.write('x' * 100000)", "limit"),
    "a big file": ("open('big', 'wb').write(bytes(200 << 20)); print('escaped')", "exited"),
    "endless recursion": ("import sys\nsys.setrecursionlimit(10**9)\nf = lambda: f()\nf()", "any"),
    "a thousand threads": (
        "import threading, time\n"
        "for _ in range(1000): threading.Thread(target=time.sleep, args=(3,), daemon=True).start()\n"
        "time.sleep(1); print('escaped')",
        "any",
    ),
    "many files": (
        "for i in range(400):\n    with open(f'f{i}', 'wb') as f: f.write(bytes(1 << 20))\n"
        "import time; time.sleep(1); print('escaped')",
        "any",
    ),
    "a fork bomb": ("import os\nwhile True: os.fork()", "exited"),
}


def on_this_machine(name: str) -> bool:
    """Attacks by x86-64 system call numbers mean nothing elsewhere."""
    return os.uname().machine == "x86_64" or ("call(" not in WANTS_OUT[name] and "32-bit" not in name)


def attack(name: str, host: dict[str, Any]) -> str:
    return f"HOST = {host!r}\n{PRELUDE}\n{WANTS_OUT[name]}\n"


@contextlib.contextmanager
def host_targets() -> Iterator[dict[str, Any]]:
    """Files, sockets and a process that anyone on this host may reach, so only the sandbox can say no."""
    folder = Path(tempfile.mkdtemp(prefix="hardwon-host-"))
    folder.chmod(0o777)
    for name in ("secret", "victim"):
        (folder / name).write_text(SECRET)
        (folder / name).chmod(0o666)
    with contextlib.ExitStack() as stack:
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for address in (str(folder / "socket"), "\0" + folder.name):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        (folder / "socket").chmod(0o777)
        stack.callback(os.environ.pop, "HARDWON_TEST_TOKEN", None)
        os.environ["HARDWON_TEST_TOKEN"] = SECRET
        yield {
            "pid": os.getpid(),
            "address": id(SECRET),
            "folder": str(folder),
            "secret": str(folder / "secret"),
            "victim": str(folder / "victim"),
            "socket": str(folder / "socket"),
            "abstract": folder.name,
            "port": tcp.getsockname()[1],
            "open": json.__file__,
        }
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
