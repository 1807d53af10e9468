"""Filters of system calls, as the byte code that the kernel and ``bwrap --seccomp`` read.

Namespaces take away the network, the host's files and its processes; these calls would still reach round a limit (memory that
belongs to no process), round the network namespace (vsock) or into parts of the kernel that no work in a folder needs.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Mapping, Sequence

from turnwise.errors import InputError

# audit architecture, then numbers by name
_X86_64 = (0xC000003E, {
    "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "msgget": 68, "semget": 64, "unshare": 272, "setns": 308,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "ptrace": 101, "process_vm_readv": 310,
    "process_vm_writev": 311, "keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321, "perf_event_open": 298,
    "userfaultfd": 323, "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246,
    "quotactl": 179, "clone": 56, "socket": 41, "prlimit64": 302, "kill": 62, "tkill": 200, "tgkill": 234,
    "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "setpriority": 141, "sched_setaffinity": 203,
})  # fmt: skip
_AARCH64 = (0xC00000B7, {
    "memfd_create": 279, "memfd_secret": 447, "shmget": 194, "msgget": 186, "semget": 190, "unshare": 97, "setns": 268,
    "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "ptrace": 117, "process_vm_readv": 270,
    "process_vm_writev": 271, "keyctl": 219, "add_key": 217, "request_key": 218, "bpf": 280, "perf_event_open": 241,
    "userfaultfd": 282, "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104,
    "quotactl": 60, "clone": 220, "socket": 198, "prlimit64": 261, "kill": 129, "tkill": 130, "tgkill": 131,
    "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "setpriority": 140, "sched_setaffinity": 122,
})  # fmt: skip
_EVERYWHERE = {  # calls since Linux 5.1 have one number on every architecture
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438,
    "mount_setattr": 442, "pidfd_send_signal": 424,
}  # fmt: skip
_MACHINES: Mapping[str, tuple[int, dict[str, int]]] = {
    "x86_64": _X86_64, "AMD64": _X86_64, "aarch64": _AARCH64, "arm64": _AARCH64,
}  # fmt: skip

_OTHERS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open", "pidfd_send_signal")
_SPECIAL = ("clone", "clone3", "socket", "prlimit64")
_SPACES = 0x7E020000  # the CLONE_NEW* flags: namespaces of one's own
_FAMILIES = (1, 2, 10)  # unix, IPv4, IPv6: what a network namespace holds back

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST = 0, 4, 16  # places in seccomp_data; of arguments the low word is read


def confined() -> bytes:
    """The filter of everything that runs in the sandbox.

    Raises:
        InputError: the machine is neither x86_64 nor aarch64.
    """
    architecture, numbers = _calls()
    skipped = {*_OTHERS, *_SPECIAL, "setpriority", "sched_setaffinity"}
    rules = [
        *_refuse_all(numbers[name] for name in sorted(numbers.keys() - skipped)),
        *_refuse(numbers["clone3"], errno.ENOSYS),  # its flags lie in memory; the C library then uses clone
        *_on_first(numbers["clone"], [(_ANY_BIT, _SPACES, 0, 1), _error(errno.EPERM)]),
        *_on_first(
            numbers["socket"],
            [
                *((_EQUAL, family, len(_FAMILIES) - i, 0) for i, family in enumerate(_FAMILIES)),
                _error(errno.EAFNOSUPPORT),
            ],
        ),
    ]
    return _program(architecture, rules)


def alone() -> bytes:
    """A further filter: no signals to other processes and no changes of their limits.

    Raises:
        InputError: the machine is neither x86_64 nor aarch64.
    """
    architecture, numbers = _calls()
    rules = [
        *_refuse_all(numbers[name] for name in (*_OTHERS, "setpriority", "sched_setaffinity")),
        *_on_first(numbers["prlimit64"], [(_EQUAL, 0, 1, 0), _error(errno.EPERM)]),
    ]
    return _program(architecture, rules)


_Rule = tuple[int, int, int, int]  # operation, operand, jump if true, jump if false


def _calls() -> tuple[int, Mapping[str, int]]:
    machine = platform.machine()
    if machine not in _MACHINES:
        raise InputError(f"sandbox: the filter of system calls is written for x86_64 and aarch64, not for {machine}")
    architecture, numbers = _MACHINES[machine]
    return architecture, numbers | _EVERYWHERE


def _error(number: int) -> _Rule:
    return (_RETURN, _ERROR | number, 0, 0)


def _refuse(call: int, number: int) -> list[_Rule]:
    return [(_EQUAL, call, 0, 1), _error(number)]


def _refuse_all(calls: object) -> list[_Rule]:
    return [rule for call in calls for rule in _refuse(call, errno.EPERM)]  # type: ignore[attr-defined]


def _on_first(call: int, rules: Sequence[_Rule]) -> list[_Rule]:
    """Rules on a call's first argument; the number of the call is loaded again after them."""
    inner = [(_LOAD, _FIRST, 0, 0), *rules, (_LOAD, _NUMBER, 0, 0)]
    return [(_EQUAL, call, 0, len(inner)), *inner]


def _program(architecture: int, rules: Sequence[_Rule]) -> bytes:
    start = [(_LOAD, _ARCHITECTURE, 0, 0), (_EQUAL, architecture, 1, 0), (_RETURN, _KILL, 0, 0), (_LOAD, _NUMBER, 0, 0)]
    if architecture == _X86_64[0]:  # the x32 calls have numbers of their own
        start += [(_AT_LEAST, 0x40000000, 0, 1), _error(errno.ENOSYS)]
    whole = [*start, *rules, (_RETURN, _ALLOW, 0, 0)]
    return b"".join(struct.pack("=HBBI", code, true, false, operand) for code, operand, true, false in whole)
