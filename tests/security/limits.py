"""Families that aim at limits: of memory, processes, files, output and time."""

from __future__ import annotations

import os
import time

from tests.security.ground import LIMITS, Ground, Probes, alive

from turnwise_worlds.sandbox.folder_value import File, Tree

_MIB = 1 << 20
_DISK = LIMITS.folder_mib * _MIB + LIMITS.files * 4096  # what the folder holds at most
_HELD = LIMITS.memory_mib * _MIB  # what may be held beside it


def _number(output: str) -> int:
    """The last number that a probe printed: bytes that it held at once."""
    words = [word for word in output.split() if word.isdigit()]
    return int(words[-1]) if words else 0


def _kept(tree: Tree) -> int:
    return sum(len(entry.content) for entry in tree.values() if isinstance(entry, File))


def memory_of_one_process(ground: Ground) -> Probes:
    yield "program", ground.program("x = bytearray(2 << 30)").ok
    yield "pipe", ground.shell("set -o pipefail; head -c 3G /dev/zero | tail").ok
    yield "snippet", ground.snippet("x = bytearray(2 << 30)").ok


def memory_of_many_processes(ground: Ground) -> Probes:
    outcome = ground.shell(
        "for i in 1 2 3 4 5 6; do python3 -c 'x = bytearray(60 << 20); input()' < <(sleep 10) & done; wait"
    )
    yield "together", outcome.stopped != "memory" and "MemoryError" not in outcome.output and outcome.ok


def socket_buffers(ground: Ground) -> Probes:
    code = """
import socket
held, pairs = 0, []
while True:
    try:
        pairs.append(socket.socketpair())
        pairs[-1][0].setblocking(False)
        while True:
            try: held += pairs[-1][0].send(bytes(1 << 16))
            except BlockingIOError: break
    except OSError: break
print(held)
"""
    children = "for _ in range(8):\n    if os.fork(): break\n"
    yield "one process", _number(ground.program(code).output) > 0
    yield "many", _number(ground.program(children + code).output) > 0


def pipe_buffers(ground: Ground) -> Probes:
    code = """
import fcntl
held, pairs = 0, []
while True:
    try:
        pairs.append(os.pipe())
        quietly(fcntl.fcntl, pairs[-1][1], 1031, 1 << 20)
        os.set_blocking(pairs[-1][1], False)
        while True:
            try: held += os.write(pairs[-1][1], bytes(1 << 16))
            except BlockingIOError: break
    except OSError: break
print(held)
"""
    yield "one process", _number(ground.program(code).output) > 128 * _MIB


def shared_memory(ground: Ground) -> Probes:
    """Pages of a shared mapping stay while one page of it is mapped, and count towards no process."""
    code = """
import mmap
libc.mmap.restype = ctypes.c_long
held = 0
for flags, place in ((0x21, None), (0x23, None), (1, '/dev/zero'), (1, '/dev/shm/x'), (1, 'x')):
    for _ in range(12):
        file = os.open(place, os.O_RDWR | os.O_CREAT) if place else -1
        size = 24 << 20
        start = libc.mmap(None, ctypes.c_size_t(size), 3, flags, file, ctypes.c_long(0))
        if start == -1 or place in ('x', '/dev/shm/x'): break
        ctypes.memset(start, 1, size)
        libc.munmap(ctypes.c_void_p(start + 4096), ctypes.c_size_t(size - 4096))
        held += size
print(held)
"""
    yield "held", _number(ground.program(code).output) > _HELD


def memory_files(ground: Ground) -> Probes:
    yield "memfd", "reached" in ground.program("works('memfd_create', b'x', 0)\nworks('memfd_secret', 0)").output


def shared_segments(ground: Ground) -> Probes:
    code = "works('shmget', 0, 1 << 20, 0o1600)\nworks('semget', 0, 1, 0o1600)\nworks('msgget', 0, 0o1600)"
    yield "calls", "reached" in ground.program(code).output


def message_queues(ground: Ground) -> Probes:
    yield "open", "reached" in ground.program("works('mq_open', b'x', 0o102, 0o600, None)").output


def extended_attributes(ground: Ground) -> Probes:
    code = """
held = 0
for place in ('.', '/tmp', '/dev/shm'):
    for i in range(400):
        try:
            os.setxattr(place, f'user.{i}', bytes(1 << 15)); held += 1 << 15
        except OSError: break
print(held)
"""
    yield "held", _number(ground.program(code).output) > 0


_FILL = """
held = 0
try:
    for i in range(600):
        held += os.write(PLACE, bytes(1 << 16))
except OSError: pass
print(held)
"""


def large_files(ground: Ground) -> Probes:
    outcome, left = ground.sandbox.shell("head -c 100M /dev/zero > one", {})
    yield "one", outcome.ok or _kept(left) > LIMITS.file_mib * _MIB
    _, left = ground.sandbox.shell("for i in $(seq 40); do head -c 1M /dev/zero > $i; done", {})
    yield "many", _kept(left) > LIMITS.folder_mib * _MIB
    _, left = ground.sandbox.shell("for i in $(seq 9); do truncate -s 2M $i; done", {})
    yield "with holes", _kept(left) > LIMITS.folder_mib * _MIB
    said = ground.shell("for i in $(seq 40); do fallocate -l 1M $i || break; done; du -sb . | cut -f1")
    yield "reserved", _number(said.output) > _DISK


def files_in_deep_folders(ground: Ground) -> Probes:
    code = "for i in range(60):\n    os.mkdir('d' * 100); os.chdir('d' * 100)\n"
    fill = "PLACE = os.open('x', os.O_CREAT | os.O_RDWR)\n" + _FILL
    total = "total = 0\nfor n in range(8):\n" + "".join(
        f"    {line}\n" for line in fill.replace("'x'", "str(n)").splitlines()
    )
    yield "held", _number(ground.program(code + total + "    total += held\nprint(total)").output) > _DISK


def files_whose_names_are_no_text(ground: Ground) -> Probes:
    said = ground.shell("for i in $(seq 20); do head -c 1M /dev/zero > $'\\xff'$i; done; ls | wc -l; cat * | wc -c")
    yield "held", _number(said.output) > _DISK


def files_without_a_name(ground: Ground) -> Probes:
    for name, make in {
        "unlinked": "f = os.open('x', os.O_CREAT | os.O_RDWR); os.unlink('x')",
        "never named": "f = os.open('.', os.O_TMPFILE | os.O_RDWR)",
    }.items():
        fill = "for i in range(30): total += os.write(f, bytes(1 << 16))"
        code = f"total = 0\nfor n in range(20):\n    try:\n        {make}\n        {fill}\n    except OSError: break"
        yield name, _number(ground.program(f"{code}\nprint(total)").output) > _DISK


def many_files(ground: Ground) -> Probes:
    began = time.monotonic()
    for name, code in {
        "named": "n = 0\nwhile True:\n    os.mkdir(str(n)); n += 1",
        "linked": "n = 0\nopen('x', 'w')\nwhile True:\n    os.symlink('x' * 200, str(n)); n += 1",
        "in tmp": "n = 0\nwhile True:\n    os.mkdir(f'/tmp/{n}'); n += 1",
    }.items():
        outcome, left = ground.sandbox.shell('exec python3 -c "import os\n' + code + '"', {})
        yield name, outcome.stopped != "disk" or len(left) > LIMITS.files
    yield "time", time.monotonic() - began > 3 * LIMITS.seconds


def other_file_systems(ground: Ground) -> Probes:
    for place in ("/tmp", "/dev/shm"):
        command = f"cd {place} && for i in $(seq 40); do head -c 2M /dev/zero > $i || exit 9; done"
        yield place, ground.shell(command).ok
    for place in ("/", "/dev", "/usr", "/proc", "/dev/pts"):
        yield place, ground.shell(f"touch {place}/x").ok


def fork_bombs(ground: Ground) -> Probes:
    mark = f"bomb{os.getpid()}"
    began = time.monotonic()
    ground.shell(f"f() {{ f | f & }}; f; sleep 2 # {mark}")
    yield "outlives", alive(mark)
    ground.snippet("import os\nfor _ in range(2000):\n    try: os.fork()\n    except OSError: pass")
    yield "states", ground.snippet("1 + 1").output != "2\n"
    yield "time", time.monotonic() - began > 4 * LIMITS.seconds


def threads(ground: Ground) -> Probes:
    code = """
import threading, time
made = 0
try:
    for _ in range(300): threading.Thread(target=time.sleep, args=(5,), daemon=True).start(); made += 1
except RuntimeError: pass
print(made, flush=True)
os._exit(0)
"""
    yield "many", _number(ground.program(code).output) > LIMITS.processes


def raised_limits(ground: Ground) -> Probes:
    for key in "vnfut":
        outcome = ground.shell(
            f"ulimit -H{key}; ulimit -H{key} unlimited 2> /dev/null; ulimit -S{key} unlimited; ulimit -{key}"
        )
        before, after = outcome.output.split()
        yield key, before != after
    yield "cores", "reached" in ground.shell("ulimit -c unlimited && echo reached").output
    code = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))"
    yield "snippet", ground.sandbox.python((), code).ok


def endless_output(ground: Ground) -> Probes:
    for name, command in {"out": "yes", "error": "yes >&2", "both": "yes & yes >&2"}.items():
        outcome = ground.shell(command)
        yield name, len(outcome.output) > LIMITS.output_kib << 10 or outcome.stopped != "output"


def events(ground: Ground) -> Probes:
    yield "watches", "reached" in ground.program("works('inotify_init1', 0)\nworks('fanotify_init', 0, 0)").output


FAMILIES = (
    memory_of_one_process, memory_of_many_processes, socket_buffers, pipe_buffers, shared_memory, memory_files,
    shared_segments, message_queues, extended_attributes, large_files, files_in_deep_folders,
    files_whose_names_are_no_text, files_without_a_name, many_files, other_file_systems, fork_bombs, threads,
    raised_limits, endless_output, events,
)  # fmt: skip
