"""Numbers of system calls, for the filters of ``seccomp.py``."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from turnwise.errors import InputError

X86_64 = 0xC000003E  # as the audit subsystem names architectures
_AARCH64 = 0xC00000B7
_X86_64_CALLS = {
    "memfd_create": 319, "memfd_secret": 447, "shmget": 29, "msgget": 68, "semget": 64, "unshare": 272, "setns": 308,
    "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "ptrace": 101, "process_vm_readv": 310,
    "process_vm_writev": 311, "keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321, "perf_event_open": 298,
    "userfaultfd": 323, "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246,
    "kexec_file_load": 320, "quotactl": 179, "swapon": 167, "swapoff": 168, "acct": 163, "reboot": 169, "syslog": 103,
    "name_to_handle_at": 303, "open_by_handle_at": 304, "kcmp": 312, "fanotify_init": 300, "inotify_init": 253,
    "inotify_init1": 294, "socket": 41, "socketpair": 53, "mq_open": 240, "mq_unlink": 241, "mq_timedsend": 242,
    "mq_timedreceive": 243, "mq_notify": 244, "mq_getsetattr": 245, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
    "mmap": 9, "clone": 56, "kill": 62, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
    "prlimit64": 302, "setrlimit": 160, "setpriority": 141, "sched_setaffinity": 203, "sched_setparam": 142,
    "sched_setscheduler": 144, "sched_setattr": 314, "ioprio_set": 251, "flock": 73, "fcntl": 72, "ioctl": 16,
    "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260,
    "utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280, "sched_getaffinity": 204,
    "sched_getscheduler": 145, "sched_getparam": 143, "sched_getattr": 315, "getpgid": 121, "getsid": 124,
    "getpriority": 140, "ioprio_get": 252, "get_robust_list": 274, "sendmsg": 46, "sendmmsg": 307,
    "recvmmsg": 299, "setsockopt": 54, "getsockopt": 55, "bind": 49, "listen": 50, "accept": 43, "accept4": 288,
    "connect": 42, "shutdown": 48, "getsockname": 51, "getpeername": 52,
}  # fmt: skip
_AARCH64_CALLS = {
    "memfd_create": 279, "memfd_secret": 447, "shmget": 194, "msgget": 186, "semget": 190, "unshare": 97, "setns": 268,
    "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "ptrace": 117, "process_vm_readv": 270,
    "process_vm_writev": 271, "keyctl": 219, "add_key": 217, "request_key": 218, "bpf": 280, "perf_event_open": 241,
    "userfaultfd": 282, "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104,
    "kexec_file_load": 294, "quotactl": 60, "swapon": 224, "swapoff": 225, "acct": 89, "reboot": 142, "syslog": 116,
    "name_to_handle_at": 264, "open_by_handle_at": 265, "kcmp": 272, "fanotify_init": 262, "inotify_init1": 26,
    "socket": 198, "socketpair": 199, "mq_open": 180, "mq_unlink": 181, "mq_timedsend": 182, "mq_timedreceive": 183,
    "mq_notify": 184, "mq_getsetattr": 185, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "mmap": 222, "clone": 220,
    "kill": 129, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "prlimit64": 261,
    "setrlimit": 164, "setpriority": 140, "sched_setaffinity": 122, "sched_setparam": 118, "sched_setscheduler": 119,
    "sched_setattr": 274, "ioprio_set": 30, "flock": 32, "fcntl": 25, "ioctl": 29, "fchmod": 52, "fchmodat": 53,
    "fchown": 55, "fchownat": 54, "utimensat": 88, "sched_getaffinity": 123, "sched_getscheduler": 120,
    "sched_getparam": 121, "sched_getattr": 275, "getpgid": 155, "getsid": 156, "getpriority": 141, "ioprio_get": 31,
    "get_robust_list": 100, "sendmsg": 211, "sendmmsg": 269, "recvmmsg": 243, "setsockopt": 208, "getsockopt": 209,
    "bind": 200, "listen": 201, "accept": 202, "accept4": 242, "connect": 203, "shutdown": 210, "getsockname": 204,
    "getpeername": 205,
}  # fmt: skip
_EVERYWHERE = {  # calls since Linux 5.1 have one number on every architecture
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "process_mrelease": 448,
    "cachestat": 451, "fchmodat2": 452, "setxattrat": 463,
}  # fmt: skip
_MACHINES: Mapping[str, tuple[int, dict[str, int]]] = {
    "x86_64": (X86_64, _X86_64_CALLS), "AMD64": (X86_64, _X86_64_CALLS),
    "aarch64": (_AARCH64, _AARCH64_CALLS), "arm64": (_AARCH64, _AARCH64_CALLS),
}  # fmt: skip


def calls() -> tuple[int, Mapping[str, int]]:
    """The architecture of this machine, and the numbers of its calls by name. A call that it lacks is not among them.

    Raises:
        InputError: the machine is neither x86_64 nor aarch64.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise InputError(f"sandbox: the filter of system calls is written for x86_64 and aarch64, not for {machine}")
    architecture, numbers = _MACHINES[machine]
    return architecture, numbers | _EVERYWHERE
