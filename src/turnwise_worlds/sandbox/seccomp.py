"""Builds filters of system calls (seccomp), as byte code for ``bwrap --seccomp``.

The filters refuse system calls that allocate memory which the kernel counts for no process, and calls that ordinary
commands do not need. Python snippets may also not use calls by which two sandboxes could exchange data through the
files of the host that both can read. The code is generated here, because libseccomp is not installed on all machines
that have bubblewrap, and because it compares an argument only once, so it cannot express "one of these values".
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterable, Sequence

from turnwise.errors import InputError

NUMBERS: dict[str, int] = {  # of the system calls of x86_64
    "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "msgget": 68, "semget": 64, "mq_open": 240,
    "mq_unlink": 241, "mq_timedsend": 242, "mq_timedreceive": 243, "mq_notify": 244, "mq_getsetattr": 245, "socket": 41,
    "socketpair": 53, "unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "mount_setattr": 442, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "process_madvise": 440,
    "process_mrelease": 448, "pidfd_getfd": 438, "kcmp": 312, "keyctl": 250, "add_key": 248, "request_key": 249,
    "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246,
    "kexec_file_load": 320, "quotactl": 179, "quotactl_fd": 443, "swapon": 167, "swapoff": 168, "acct": 163,
    "reboot": 169, "syslog": 103, "name_to_handle_at": 303, "open_by_handle_at": 304, "fanotify_init": 300,
    "inotify_init": 253, "inotify_init1": 294, "cachestat": 451,
    # up to here refused to everybody; the others are refused to some, or with another error, or by their arguments
    "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "setxattrat": 463, "clone": 56, "clone3": 435, "mmap": 9,
    "setsockopt": 54, "flock": 73, "fcntl": 72, "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280,
}  # fmt: skip
_REFUSED = tuple(NUMBERS)[: tuple(NUMBERS).index("setxattr")]
_ATTRIBUTES = ("setxattr", "lsetxattr", "fsetxattr", "setxattrat")  # their memory counts towards no folder's size
_TRACES = ("flock", "utime", "utimes", "futimesat", "utimensat")  # locks and dates that other sandboxes can see
_FCNTL = (0, 1, 2, 3, 4, 1030)  # duplicate a descriptor; get and set its flags and those of its open file; no locks

_X86_64 = 0xC000003E  # the code by which the kernel's audit subsystem names the architecture
_INTERNET, _TCP = 2, 6  # AF_INET, IPPROTO_TCP
_SOL_SOCKET, _BUFFERS = 1, (7, 8, 32, 33)  # SO_SNDBUF, SO_RCVBUF, and their FORCE variants
_SPACES = 0x7E020000  # all flags of clone that create namespaces (CLONE_NEW*)
_MAP_SHARED = 1  # MAP_SHARED_VALIDATE (3) contains this bit too

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4  # byte offsets of the fields ``nr`` and ``arch`` in the kernel's struct seccomp_data

_Rule = tuple[int, int, int, int]  # operation, operand, jump if true, jump if false


def filter_of(kind: str) -> bytes:
    """Returns the byte code of a filter. ``snippet`` also refuses locks and new dates of files; ``connected`` allows
    socket pairs, and TCP in the sandbox's own network, with buffers, which no memory limit counts, of unchanged size.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        raise InputError(f"sandbox: the filter of system calls is for x86_64, but this machine is {platform.machine()}")
    opened = ("socket", "socketpair") if kind == "connected" else ()
    rules = [
        *_refuse_all([name for name in _REFUSED if name not in opened], errno.EPERM),
        *_refuse_all(_ATTRIBUTES, errno.EOPNOTSUPP),
        # A filter cannot read the flags of clone3, which are in memory. After ENOSYS, the C library uses clone instead.
        *_refuse_all(["clone3"], errno.ENOSYS),
        *_on(NUMBERS["clone"], [_argument(0), (_ANY_BIT, _SPACES, 0, 1), _error(errno.EPERM)]),
        # Shared mappings are refused: if a process unmaps most of a mapping, the whole memory stays allocated, but
        # hardly any of it is counted.
        *_on(NUMBERS["mmap"], [_argument(3), (_ANY_BIT, _MAP_SHARED, 0, 1), _error(errno.EPERM)]),
    ]
    if kind == "snippet":
        rules += _refuse_all(_TRACES, errno.EPERM) + _on(NUMBERS["fcntl"], _only(1, _FCNTL))
    if kind == "connected":
        larger = [rule for option in _BUFFERS for rule in ((_EQUAL, option, 0, 1), _error(errno.EPERM))]
        of_sockets = [_argument(1), (_EQUAL, _SOL_SOCKET, 0, 1 + len(larger)), _argument(2), *larger]
        rules += _on(NUMBERS["socket"], [*_only(0, (_INTERNET,)), *_only(2, (0, _TCP))])
        rules += _on(NUMBERS["setsockopt"], of_sockets)
    start = [(_LOAD, _ARCHITECTURE, 0, 0), (_EQUAL, _X86_64, 1, 0), (_RETURN, _KILL, 0, 0), (_LOAD, _NUMBER, 0, 0)]
    # refuses the system calls of the x32 ABI, whose numbers begin at 0x40000000
    start += [(_AT_LEAST, 0x40000000, 0, 1), _error(errno.ENOSYS)]
    whole = [*start, *rules, (_RETURN, _ALLOW, 0, 0)]
    return b"".join(struct.pack("=HBBI", code, true, false, operand) for code, operand, true, false in whole)


def _argument(index: int) -> _Rule:
    return (_LOAD, 16 + 8 * index, 0, 0)


def _only(index: int, values: Sequence[int]) -> list[_Rule]:
    allowed = [(_EQUAL, value, len(values) - i, 0) for i, value in enumerate(values)]
    return [_argument(index), *allowed, _error(errno.EPERM)]


def _error(number: int) -> _Rule:
    return (_RETURN, _ERROR | number, 0, 0)


def _refuse_all(names: Iterable[str], number: int) -> list[_Rule]:
    refused = sorted(NUMBERS[name] for name in names)
    return [rule for call in refused for rule in ((_EQUAL, call, 0, 1), _error(number))]


def _on(call: int, rules: Sequence[_Rule]) -> list[_Rule]:
    inner = [*rules, (_LOAD, _NUMBER, 0, 0)]  # loads the number again, because the following instructions read it
    return [(_EQUAL, call, 0, len(inner)), *inner]
