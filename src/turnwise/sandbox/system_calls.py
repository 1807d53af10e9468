"""Lists the numbers of the system calls that the filters in ``seccomp.py`` use."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from turnwise.errors import InputError

X86_64, _AARCH64 = 0xC000003E, 0xC00000B7  # the codes by which the kernel's audit subsystem names architectures
# name of a system call -> its numbers on x86_64 and on aarch64; None: aarch64 has no such call
_NUMBERS: Mapping[str, tuple[int, int | None]] = {
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "ptrace": (101, 117), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "quotactl": (179, 60), "swapon": (167, 224), "swapoff": (168, 225),
    "acct": (163, 89), "reboot": (169, 142), "syslog": (103, 116), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "kcmp": (312, 272), "fanotify_init": (300, 262), "inotify_init": (253, None),
    "inotify_init1": (294, 26), "socket": (41, 198), "socketpair": (53, 199), "mq_open": (240, 180),
    "mq_unlink": (241, 181), "mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184),
    "mq_getsetattr": (245, 185), "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    "mmap": (9, 222), "clone": (56, 220), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "prlimit64": (302, 261),
    "setrlimit": (160, 164), "setpriority": (141, 140), "sched_setaffinity": (203, 122),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "ioprio_set": (251, 30), "flock": (73, 32), "fcntl": (72, 25), "ioctl": (16, 29), "chmod": (90, None),
    "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None), "fchown": (93, 55), "lchown": (94, None),
    "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None), "futimesat": (261, None),
    "utimensat": (280, 88), "sched_getaffinity": (204, 123), "sched_getscheduler": (145, 120),
    "sched_getparam": (143, 121), "sched_getattr": (315, 275), "getpgid": (121, 155), "getsid": (124, 156),
    "getpriority": (140, 141), "ioprio_get": (252, 31), "get_robust_list": (274, 100), "sendmsg": (46, 211),
    "sendmmsg": (307, 269), "recvmmsg": (299, 243), "setsockopt": (54, 208), "getsockopt": (55, 209),
    "bind": (49, 200), "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242), "connect": (42, 203),
    "shutdown": (48, 210), "getsockname": (51, 204), "getpeername": (52, 205),
}  # fmt: skip
_EVERYWHERE = {  # newer calls (since Linux 5.1) have the same number on every architecture
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "pidfd_open": 434, "clone3": 435, "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442,
    "quotactl_fd": 443, "process_mrelease": 448, "cachestat": 451, "fchmodat2": 452, "setxattrat": 463,
}  # fmt: skip
_MACHINES = {"x86_64": (X86_64, 0), "AMD64": (X86_64, 0), "aarch64": (_AARCH64, 1), "arm64": (_AARCH64, 1)}
"""Name of the machine (``platform.machine()``) -> code of the architecture, and its index in values of ``_NUMBERS``."""


def calls() -> tuple[int, Mapping[str, int]]:
    """Returns the code of this machine's architecture, and the numbers of its system calls by name.

    Raises:
        InputError: the machine is neither x86_64 nor aarch64.
    """
    machine = platform.machine()
    if machine not in _MACHINES:
        raise InputError(
            f"sandbox: the filter of system calls supports x86_64 and aarch64, but this machine is {machine}; use a "
            "machine with one of these architectures"
        )
    architecture, column = _MACHINES[machine]
    own = {name: number for name, numbers in _NUMBERS.items() if (number := numbers[column]) is not None}
    return architecture, own | _EVERYWHERE
