"""Builds filters of system calls (seccomp), as byte code for the kernel and ``bwrap --seccomp``.

The filters refuse three kinds of system calls: calls that allocate memory that the kernel counts for no process, calls
that ordinary commands do not need, and calls by which two Python states could exchange data.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence

from turnwise.sandbox.system_calls import X86_64, calls

_REFUSED = (
    "memfd_create", "memfd_secret", "shmget", "msgget", "semget", "mq_open", "mq_unlink", "mq_timedsend",
    "mq_timedreceive", "mq_notify", "mq_getsetattr", "socket", "socketpair", "unshare", "setns", "mount", "umount2",
    "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr",
    "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "process_mrelease", "pidfd_getfd", "kcmp",
    "keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "quotactl",
    "quotactl_fd", "swapon", "swapoff", "acct", "reboot", "syslog", "name_to_handle_at", "open_by_handle_at",
    "fanotify_init", "inotify_init", "inotify_init1", "cachestat",
)  # fmt: skip
"""System calls that no process in a sandbox may use."""

# Calls that set file attributes are refused too: the memory of attributes does not count towards a folder's size.
_ATTRIBUTES = ("setxattr", "lsetxattr", "fsetxattr", "setxattrat")

_REFUSED_STATES = (
    "kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal",
    "setpriority", "setrlimit", "sched_setaffinity", "sched_setparam", "sched_setscheduler", "sched_setattr",
    "ioprio_set", "flock", "chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat",
    "utime", "utimes", "futimesat", "utimensat", "socketpair", "sendmsg", "sendmmsg", "recvmmsg", "setsockopt",
    "getsockopt", "bind", "listen", "accept", "accept4", "connect", "shutdown", "getsockname", "getpeername",
)  # fmt: skip
"""Further system calls that Python states may not use.

These calls send signals to processes, change limits, or have an effect that another state could observe.
"""

_OF_ITSELF = {  # system call -> index of its argument that names a process and must be 0 (the calling process)
    "sched_getaffinity": 0, "sched_getscheduler": 0, "sched_getparam": 0, "sched_getattr": 0, "getpgid": 0, "getsid": 0,
    "get_robust_list": 0, "getpriority": 1, "ioprio_get": 1, "prlimit64": 0,
}  # fmt: skip
# allowed fcntl commands: duplicate a descriptor, get and set its flags, and get the flags of its open file
_FCNTL = (0, 1, 2, 3, 1030)
# allowed ioctl requests: get terminal attributes, terminal size or number of readable bytes; set or clear close-on-exec
_IOCTL = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)

_INTERNET, _TCP = 2, 6  # AF_INET, IPPROTO_TCP
_SOL_SOCKET, _BUFFERS = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and their FORCE variants

_SPACES = 0x7E020000  # all flags of clone that create namespaces (CLONE_NEW*)
# flags of clone by which two processes share the current folder, open files, signal handlers, semaphores or I/O context
_SHARING = 0x80040E00
_MEMORY, _VFORK, _THREAD = 0x100, 0x4000, 0x10000
_MAP_SHARED = 1  # MAP_SHARED_VALIDATE (3) contains this bit too

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4  # byte offsets of the fields ``nr`` and ``arch`` in the kernel's struct seccomp_data

_Rule = tuple[int, int, int, int]  # operation, operand, jump if true, jump if false


def confined() -> bytes:
    """Returns the filter of system calls for ordinary commands in a sandbox.

    Raises:
        InputError: the machine is neither x86_64 nor aarch64.
    """
    return _program(_walls(_REFUSED))


def broker() -> bytes:
    """Returns the filter of system calls for the Python server, which allows socket pairs.

    Raises:
        InputError: the machine is neither x86_64 nor aarch64.
    """
    return _program(_walls([name for name in _REFUSED if name != "socketpair"]))


def connected() -> bytes:
    """Returns the filter of system calls for a command that may reach one server on the host (``socket_forward.py``).

    The filter allows socket pairs, and TCP sockets in the sandbox's own network. It does not let a command enlarge
    socket buffers, because socket buffers do not count towards the memory limit.

    Raises:
        InputError: the machine is neither x86_64 nor aarch64.
    """
    _, numbers = calls()
    rules = _walls([name for name in _REFUSED if name not in ("socket", "socketpair")])
    rules += _on(numbers["socket"], [*_only(0, (_INTERNET,)), *_only(2, (0, _TCP))])
    larger = [rule for option in _BUFFERS for rule in ((_EQUAL, option, 0, 1), _error(errno.EPERM))]
    rules += _on(numbers["setsockopt"], [_first(1), (_EQUAL, _SOL_SOCKET, 0, 1 + len(larger)), _first(2), *larger])
    return _program(rules)


def alone() -> bytes:
    """Returns an additional filter for Python states, so that no state can affect another state or pass data to it.

    Raises:
        InputError: the machine is neither x86_64 nor aarch64.
    """
    _, numbers = calls()
    rules = [
        *_refuse_all(_REFUSED_STATES, errno.EPERM),
        *_on(  # a new thread may share everything; a new process may share only memory, and only if its parent waits
            numbers["clone"],
            [
                _first(0),
                (_ANY_BIT, _THREAD, 4, 0),
                (_ANY_BIT, _SHARING, 2, 0),
                (_ANY_BIT, _MEMORY, 0, 2),
                (_ANY_BIT, _VFORK, 1, 0),
                _error(errno.EPERM),
            ],
        ),
        *_on(numbers["fcntl"], _only(1, _FCNTL)),
        *_on(numbers["ioctl"], _only(1, _IOCTL)),
    ]
    for name, argument in _OF_ITSELF.items():
        rules += _on(numbers[name], [_first(argument), (_EQUAL, 0, 1, 0), _error(errno.EPERM)])
    rules += _on(  # limits may be read but not set: both halves of the pointer to a new limit must be 0
        numbers["prlimit64"],
        [_first(2), (_EQUAL, 0, 0, 2), (_LOAD, 16 + 8 * 2 + 4, 0, 0), (_EQUAL, 0, 1, 0), _error(errno.EPERM)],
    )
    return _program(rules)


def _walls(refused: Iterable[str]) -> list[_Rule]:
    _, numbers = calls()
    return [
        *_refuse_all(refused, errno.EPERM),
        *_refuse_all(_ATTRIBUTES, errno.EOPNOTSUPP),
        # A filter cannot read the flags of clone3, which are in memory. After ENOSYS, the C library uses clone instead.
        *_refuse_all(["clone3"], errno.ENOSYS),
        *_on(numbers["clone"], [_first(0), (_ANY_BIT, _SPACES, 0, 1), _error(errno.EPERM)]),
        # Shared mappings are refused: if a process unmaps most of a mapping, the whole memory stays allocated, but
        # hardly any of it is counted.
        *_on(numbers["mmap"], [_first(3), (_ANY_BIT, _MAP_SHARED, 0, 1), _error(errno.EPERM)]),
    ]


def _first(argument: int) -> _Rule:
    """Returns the instruction that loads the low 32 bits of the argument with the index ``argument``."""
    return (_LOAD, 16 + 8 * argument, 0, 0)


def _only(argument: int, values: Sequence[int]) -> list[_Rule]:
    """Returns instructions that refuse a system call unless its argument has one of the given values."""
    allowed = [(_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)]
    return [_first(argument), *allowed, _error(errno.EPERM)]


def _error(number: int) -> _Rule:
    return (_RETURN, _ERROR | number, 0, 0)


def _refuse_all(names: Iterable[str], number: int) -> list[_Rule]:
    _, numbers = calls()
    found = sorted(numbers[name] for name in names if name in numbers)
    return [rule for call in found for rule in ((_EQUAL, call, 0, 1), _error(number))]


def _on(call: int, rules: Sequence[_Rule]) -> list[_Rule]:
    """Returns instructions that apply ``rules`` only to the system call number ``call``."""
    inner = [*rules, (_LOAD, _NUMBER, 0, 0)]  # loads the number again, because the following instructions read it
    return [(_EQUAL, call, 0, len(inner)), *inner]


def _program(rules: Sequence[_Rule]) -> bytes:
    architecture, _ = calls()
    start = [(_LOAD, _ARCHITECTURE, 0, 0), (_EQUAL, architecture, 1, 0), (_RETURN, _KILL, 0, 0), (_LOAD, _NUMBER, 0, 0)]
    if architecture == X86_64:  # refuses the system calls of the x32 ABI, whose numbers begin at 0x40000000
        start += [(_AT_LEAST, 0x40000000, 0, 1), _error(errno.ENOSYS)]
    whole = [*start, *rules, (_RETURN, _ALLOW, 0, 0)]
    return b"".join(struct.pack("=HBBI", code, true, false, operand) for code, operand, true, false in whole)
