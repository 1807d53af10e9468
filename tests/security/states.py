"""Families that aim at other Python states: what one branch leaves, the other one must not find."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from dataclasses import replace

from tests.security.ground import Ground, Probes, alive, kit

from turnwise_worlds.sandbox.sandbox import Bubblewrap, SandboxFault

_READ = "import os, select\nprint(os.read({0}, 9) if select.select([{0}], [], [], 0.1)[0] else '')"


def _passes(ground: Ground, before: str, leave: str, find: str) -> bool:
    """Whether a word that one branch of a state leaves is printed by the other one, or by one that begins afresh."""
    both = (kit() + before,)
    found = ""
    for earlier, code in ((both, leave), (both, find), (both, leave), (both, find), ((), f"{before}\n{find}")):
        with suppress(SandboxFault):  # the state that would have passed it on was ended
            outcome = ground.sandbox.python(earlier, code)
            found += outcome.output if code != leave else ""
    return "WORD" in found


def files(ground: Ground) -> Probes:
    for place in ("/dev/shm", "/tmp", "/", "/dev", "/usr", "/box", "/closed"):
        leave = f"import os\nos.symlink('WORD', '{place}/left')"
        yield f"link {place}", _passes(ground, "", leave, f"import os\nprint(os.readlink('{place}/left'))")
    leave = "import os\nos.mkdir('/dev/shm/WORD')"
    yield "name", _passes(ground, "", leave, "import os\nprint(os.listdir('/dev/shm'))")


def attributes(ground: Ground) -> Probes:
    for place in ("/dev/null", "/dev/pts/ptmx", "/dev/shm", "/usr"):
        leave = f"import os\nfor act in (lambda: os.utime('{place}', (77, 77)), lambda: os.chmod('{place}', 0o751)):\n    act()"
        leave = leave.replace("    act()", "    try: act()\n    except OSError: pass")
        find = f"import os\ns = os.stat('{place}')\nprint('WORD' if int(s.st_mtime) == 77 or s.st_mode & 0o777 == 0o751 else '')"
        yield place, _passes(ground, "", leave, find)
    touched = "import os\nbefore = os.stat('/dev/null').st_mtime\ntry: os.utime('/dev/null')\nexcept OSError: pass\n"
    outcome = ground.sandbox.python((), touched + "print(os.stat('/dev/null').st_mtime != before)")
    yield "the date of a device", "True" in outcome.output


def message_queues(ground: Ground) -> Probes:
    before = "import ctypes\n"
    leave = "libc = ctypes.CDLL(None)\nq = libc.mq_open(b'/q', 0o102, 0o600, None)\nlibc.mq_send(q, b'WORD', 4, 0)"
    find = "libc = ctypes.CDLL(None)\nq = libc.mq_open(b'/q', 0)\nb = ctypes.create_string_buffer(9000)\n"
    yield "POSIX", _passes(ground, before, leave, find + "libc.mq_receive(q, b, 9000, None); print(b.value)")
    leave = "libc = ctypes.CDLL(None)\nq = libc.msgget(77, 0o1600)\nprint('reached' if q >= 0 else '')"
    yield "System V", "reached" in ground.snippet(leave, before).output


def shared_segments(ground: Ground) -> Probes:
    code = "works('shmget', 77, 4096, 0o1600)\nworks('semget', 77, 1, 0o1600)"
    yield "calls", "reached" in ground.snippet(code).output


def shared_memory(ground: Ground) -> Probes:
    before = "import mmap\nm = mmap.mmap(-1, 4096)"
    yield "across copies", _passes(ground, before, "m[:4] = b'WORD'", "print(m[:4])")


def pipes(ground: Ground) -> Probes:
    before = "import os\nr, w = os.pipe()"
    yield "left open", _passes(ground, before, "os.write(w, b'WORD')", _READ.format("r"))


def positions_in_files(ground: Ground) -> Probes:
    before = "import os\nf = os.open('/usr/bin/env', os.O_RDONLY)"
    yield "left open", _passes(ground, before, "os.lseek(f, 77, 0)", "print('WORD' if os.lseek(f, 0, 1) == 77 else '')")


_HIDING = """
import os, gc, ctypes
r, w = os.pipe()
real = os.closerange
os.closerange = lambda *rest: None
"""


def files_hidden_from_the_state(ground: Ground) -> Probes:
    """A snippet changes the program that its state runs, so that nothing is closed."""
    yield "pipe", _passes(ground, _HIDING, "os.write(w, b'WORD')", _READ.format("r"))
    move = _HIDING + "os.dup2(r, 0); os.dup2(w, 1); os.dup2(w, 4)\nos.dup2 = lambda *rest: None\n"
    yield "as its streams", _passes(ground, move, "os.write(4, b'WORD')", _READ.format("0"))


def copies_that_share(ground: Ground) -> Probes:
    """A snippet changes how its state makes copies: with a pipe that is opened only then."""
    before = """
import os
shared = {}
real = os.fork
def fork():
    if not shared:
        shared['r'], shared['w'] = os.pipe()
    return real()
os.fork = fork
"""
    yield "pipe", _passes(ground, before, "os.write(shared['w'], b'WORD')", _READ.format("shared['r']"))
    before = """
import os, ctypes
libc = ctypes.CDLL(None)
box = []
os.fork = lambda: libc.syscall(56, 0x100 | 17, 0, 0, 0, 0)
"""
    yield "memory", _passes(ground, before, "box.append('WORD')", "print(box)")
    yield "open files", _passes(ground, before.replace("0x100", "0x400"), "box.append('WORD')", "print(box)")


def locks(ground: Ground) -> Probes:
    leave = "import fcntl\nf = open('/usr/bin/env')\nfcntl.flock(f, fcntl.LOCK_EX)"
    find = "import fcntl\nf = open('/usr/bin/env')\ntry: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    yield "flock", _passes(ground, "", leave, find + "except BlockingIOError: print('WORD')")
    hold = "import mmap\nm = mmap.mmap(f.fileno(), 4096, flags=2, prot=1)"
    yield "in a mapping", _passes(ground, "", f"{leave}\n{hold}", find + "except BlockingIOError: print('WORD')")
    leave = "import fcntl\nf = open('/usr/bin/env')\nfcntl.lockf(f, fcntl.LOCK_SH)"
    yield "fcntl", ground.sandbox.python((), leave).ok


def flags_of_open_files(ground: Ground) -> Probes:
    leave = (
        "import fcntl, os\nfor d in range(5):\n    try: fcntl.fcntl(d, 4, os.O_NONBLOCK)\n    except OSError: pass\n"
    )
    ioctl = "for d in range(5):\n    try: os.set_blocking(d, False)\n    except OSError: pass"
    find = "import fcntl, os\nprint('WORD' if any(fcntl.fcntl(d, 3) & os.O_NONBLOCK for d in (0, 3, 4)) else '')"
    yield "shared", _passes(ground, "", leave + ioctl, find)


def processes(ground: Ground) -> Probes:
    rename = "import ctypes\nctypes.CDLL(None).prctl(15, b'WORD', 0, 0, 0)"
    look = "import os\nfor p in os.listdir('/proc'):\n    print(open(f'/proc/{p}/comm').read() if p.isdigit() else '')"
    yield "names", _passes(ground, "", rename, look)
    for place in ("/proc", "/closed/proc", "/closed", ".", ".."):
        listed = ground.sandbox.python(
            (), f"import os\nprint([p for p in os.listdir('{place}') if p.isdigit()] and 'WORD')"
        )
        yield place, "WORD" in listed.output


def properties_of_processes(ground: Ground) -> Probes:
    """What counts is what another state sees of a property."""
    for name, leave, find in (
        ("nice", "os.nice(7)", "os.getpriority(0, {}) == 7"),
        ("affinity", "os.sched_setaffinity(0, {0})", "os.sched_getaffinity({}) == {{0}}"),
        ("group", "os.setpgid(0, 0)", "os.getpgid({}) != os.getpgid(0)"),
        (
            "limits",
            "resource.setrlimit(4, (0, 0)); resource.setrlimit(7, (33, 33))",
            "resource.prlimit({}, 7)[0] == 33",
        ),
    ):
        for pid in ("0", "1", "2"):
            code = f"import os, resource\ntry: print('WORD' if {find.format(pid)} else '')\nexcept OSError: pass"
            yield f"{name} of {pid}", _passes(ground, "", f"import os, resource\n{leave}", code)


def signals(ground: Ground) -> Probes:
    for victim in ("-1", "1", "0", "os.getppid()", "os.getpid() - 1", "os.getpid() - 2"):
        ground.sandbox.python((), f"import os\nos.kill({victim}, 9)")
    yield "states end", ground.sandbox.python(("x = 'kept'",), "x").output != "'kept'\n"


def children_of_a_snippet(ground: Ground) -> Probes:
    mark = f"left{os.getpid()}"
    code = (
        f"import subprocess\nsubprocess.Popen(['bash', '-c', 'while :; do :; done # {mark}'], start_new_session=True)"
    )
    ground.sandbox.python((), code)
    yield "outlive", alive(mark)


def sockets(ground: Ground) -> Probes:
    for call in ("socket.socketpair()", "socket.socket(socket.AF_UNIX)", "socket.socket()"):
        yield call, ground.sandbox.python((), f"import socket\n{call}").ok
    sends = "import socket\nsocket.socket.sendmsg(socket.socket(fileno=3), [b'x'])"
    yield "handing files on", ground.sandbox.python((), sends).ok


_ENDED = ("9" * 5000, "0", "-1", "")  # what a snippet may write where its number is expected


def _shown(sandbox: Bubblewrap, *snippets: str) -> str:
    """What x is after the snippets, without those that did not come to their end, as ``env=math`` leaves them out."""
    before: list[str] = []
    for code in snippets:
        before += [code] * (sandbox.python(before, code).status is not None)
    return sandbox.python(before, "x").output


def false_reports(ground: Ground) -> Probes:
    lie = "import os\nfor d in range(3, 64):\n    try: os.write(d, bytes(4))\n    except OSError: pass\n"
    # its own branch may print what it likes
    yield "x", not _shown(ground.sandbox, "x = 5", f"{lie}x = 6").endswith("6\n")
    for name, code in {
        "another process": "if os.fork(): os._exit(0)\nx = 7",
        **{f"ended: {text:.9}": f"open('/box/ended', 'w').write('{text}')\nx = 7\nos._exit(0)" for text in _ENDED},
        "no folder": "os.mkdir('/box/ended')\nx = 7\nos._exit(0)",
        "a full folder": "x = 7\nfor i in range(9): open(f'/box/{i}', 'wb', 0).write(bytes(2 << 20))",
    }.items():
        yield name, _shown(ground.sandbox, "x = 5", f"import os\n{code}") != "5\n"
    hurried = Bubblewrap(replace(ground.sandbox.limits, seconds=1))
    with closing(hurried):
        endless = "import signal\nsignal.setitimer(signal.ITIMER_REAL, 0)\nx = 7\nwhile True: pass"
        yield "no timer", hurried.python(["x = 5"], endless).stopped != "time"
        yield "no timer, later", _shown(hurried, "x = 5", endless) != "5\n"


FAMILIES = (
    files, attributes, message_queues, shared_segments, shared_memory, pipes, positions_in_files,
    files_hidden_from_the_state, copies_that_share, locks, flags_of_open_files, processes, properties_of_processes,
    signals, children_of_a_snippet, sockets, false_reports,
)  # fmt: skip
