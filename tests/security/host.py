"""Families that aim at the network, at files of the host, and at its processes."""

from __future__ import annotations

import os
import time

from tests.security.ground import Ground, Probes, alive

from turnwise_worlds.sandbox.folder_value import File

_TRY = "import socket\ndef attempt(act):\n    try:\n        act()\n        print('reached')\n    except OSError:\n        pass\n"


def _reaches(ground: Ground, code: str) -> bool:
    """Whether a program, or the same as a snippet, gets to a server or says that it got out."""
    said = ground.program(_TRY + code).output + ground.snippet(_TRY + code, _TRY + code).output
    return ground.answers() or "reached" in said


def stream_sockets(ground: Ground) -> Probes:
    for version, address in (("4", "127.0.0.1"), ("6", "::1")):
        if version in ground.streams:
            to = (address, ground.port(version))
            yield f"tcp{version}", _reaches(ground, f"attempt(lambda: socket.create_connection({to}, 1))")
    shell = ground.shell(f"exec 3<>/dev/tcp/127.0.0.1/{ground.port('4')} && echo reached")
    yield "bash", ground.answers() or "reached" in shell.output


def datagram_sockets(ground: Ground) -> Probes:
    to = ground.datagrams.getsockname()
    code = f"attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', {to}))"
    yield "udp", _reaches(ground, code)


def multipath_sockets(ground: Ground) -> Probes:
    to = ("127.0.0.1", ground.port("4"))
    yield "mptcp", _reaches(ground, f"attempt(lambda: socket.socket(2, 1, 262).connect({to}))")


def fast_open(ground: Ground) -> Probes:
    to = ("127.0.0.1", ground.port("4"))
    yield "sendto", _reaches(ground, f"attempt(lambda: socket.socket().sendto(b'x', 0x20000000, {to}))")


def listening(ground: Ground) -> Probes:
    yield "without bind", _reaches(ground, "attempt(lambda: socket.socket().listen())")
    yield "any address", _reaches(ground, "attempt(lambda: socket.socket().bind(('0.0.0.0', 0)))")


def unix_sockets(ground: Ground) -> Probes:
    for name, place in (("abstract", f"\0{ground.secret}"), ("path", str(ground.outside / "socket"))):
        yield name, _reaches(ground, f"attempt(lambda: socket.socket(socket.AF_UNIX).connect({place!r}))")


def other_sockets(ground: Ground) -> Probes:
    for name, family, kind in (("netlink", 16, 3), ("packet", 17, 3), ("vsock", 40, 1), ("raw", 2, 3), ("alg", 38, 5)):
        yield name, _reaches(ground, f"attempt(lambda: socket.socket({family}, {kind}))")


def io_uring(ground: Ground) -> Probes:
    yield "setup", "reached" in ground.program("works('io_uring_setup', 8, ctypes.create_string_buffer(200))").output


def reading_the_host(ground: Ground) -> Probes:
    for place in (ground.outside / "secret", "/etc/passwd", "/etc/shadow", "/root", "/home", "/var"):
        outcome = ground.shell(f"cat {place} || ls {place}/ 2> /dev/null")
        yield str(place).rpartition("/")[2], ground.secret in outcome.output or outcome.status == 0
    said = ground.sandbox.python((), f"print(open({str(ground.outside / 'secret')!r}).read())").output
    yield "snippet", ground.secret in said


def writing_the_host(ground: Ground) -> Probes:
    for place in (ground.outside / "new", "/new", "/usr/new", "/etc/new", "/dev/new", "/proc/new"):
        ground.shell(f"touch {place}; echo x > {place}")
        ground.sandbox.python((), f"open({str(place)!r}, 'w').write('x')")
        yield str(place), os.path.exists(place)  # noqa: PTH110 (of either kind)
    ground.shell(f"echo changed > {ground.outside}/open; rm -rf {ground.outside}/*")
    yield "content", (ground.outside / "open").read_text() != "open\n"


def attributes_of_files(ground: Ground) -> Probes:
    place = ground.outside / "open"
    before, names = place.stat(), os.listxattr(place)
    ground.shell(f"chmod 0 {place}; chown 1 {place}; touch {place}; setfattr -n user.x -v 1 {place}")
    code = f"""
place = {str(place)!r}
for act in (lambda: os.chmod(place, 0), lambda: os.utime(place, (0, 0)), lambda: os.setxattr(place, 'user.x', b'1'),
            lambda: os.chown(place, 1, 1), lambda: os.truncate(place, 0), lambda: os.rename(place, place + '2')):
    quietly(act)
"""
    ground.program(code)
    ground.snippet(code)
    after = place.stat()
    yield "modes", before.st_mode != after.st_mode
    yield "owner", (before.st_uid, before.st_gid) != (after.st_uid, after.st_gid)
    yield "dates", before.st_mtime != after.st_mtime
    yield "extended", names != os.listxattr(place)


def links_out_of_the_folder(ground: Ground) -> Probes:
    command = (
        f"ln -s {ground.outside}/secret a; ln -s / b; ln {ground.outside}/secret c; mkdir d; ln -s {ground.outside} d/e"
    )
    outcome, left = ground.sandbox.shell(command, {})
    yield "read", any(isinstance(entry, File) for entry in left.values()) or ground.secret in outcome.output
    again, _ = ground.sandbox.shell("cat a b/etc/passwd d/e/secret; echo changed > a; echo changed > d/e/open", left)
    yield "followed", ground.secret in again.output or (ground.outside / "open").read_text() != "open\n"


def swapping_the_folder(ground: Ground) -> Probes:
    """The host must not follow a link that takes a folder's place while it looks."""
    target = ground.outside / "folder"
    code = f"""
import time
os.symlink({str(target)!r}, 'link')
names = [b'mine%d' % i for i in range(90)]
for name in names: os.mkdir(name)
mine = [os.open(name, os.O_RDONLY) for name in names]
end = time.monotonic() + 1.5
while time.monotonic() < end:
    for name, folder in zip(names, mine):
        os.fchmod(folder, 0)
        libc.renameat2(-100, name, -100, b'link', 2)
        libc.renameat2(-100, name, -100, b'link', 2)
"""
    ground.program(code)
    yield "while it runs", target.stat().st_mode & 0o777 != 0o777
    _, left = ground.sandbox.shell(f"ln -s {target} open; mkdir -m 0 closed; ln -s {target} closed2", {})
    yield "afterwards", target.stat().st_mode & 0o777 != 0o777 or any("/" in path for path in left)


def special_files(ground: Ground) -> Probes:
    began = time.monotonic()
    _, left = ground.sandbox.shell("mkfifo pipe; mknod null c 1 3; mknod disk b 254 0; mkdir -m 0 closed", {})
    yield "kept", set(left) != {"closed"}
    yield "the host waits", time.monotonic() - began > 10
    yield (
        "devices",
        "reached" in ground.shell("for d in mem kmsg sda vda port; do head -c 1 /dev/$d && echo reached; done").output,
    )


def mounts(ground: Ground) -> Probes:
    code = f"""
place = {str(ground.outside).encode()!r}
works('mount', b'none', b'/tmp', b'tmpfs', 0, None)
works('mount', None, b'/', None, 4096 | 32, None)
works('umount2', b'/proc', 2)
works('pivot_root', b'.', b'.')
works('chroot', b'.')
works('fsopen', b'tmpfs', 0)
works('open_tree', -100, b'/usr', 1)
works('mount_setattr', -100, b'/usr', 0, ctypes.create_string_buffer(32), 32)
works('move_mount', -100, b'/usr', -100, b'/tmp', 0)
works('open_by_handle_at', -100, ctypes.create_string_buffer(32), 0)
"""
    yield "calls", "reached" in ground.program(code).output
    yield "usr is writable", "reached" in ground.shell("mount -o remount,rw /usr; touch /usr/x && echo reached").output


def kernel_settings(ground: Ground) -> Probes:
    places = "/proc/sys/kernel/hostname /proc/sysrq-trigger /proc/sys/kernel/core_pattern /sys/power/state"
    said = ground.shell(
        f"for p in {places}; do (echo 1 > $p) 2> /dev/null && echo reached; done; hostname x && echo reached"
    )
    yield "files", "reached" in said.output
    code = """
for name in ('reboot', 'swapon', 'swapoff', 'acct', 'init_module', 'delete_module', 'kexec_load', 'bpf', 'perf_event_open',
             'userfaultfd', 'fanotify_init', 'quotactl', 'syslog'):
    works(name, 3, 0, 0, 0, 0)
"""
    yield "calls", "reached" in ground.program(code).output


def rights(ground: Ground) -> Probes:
    lines = ground.shell("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; id -u").output.split()
    status = dict(zip(lines[:-1:2], lines[1::2], strict=False))
    yield "capabilities", any(int(value, 16) for name, value in status.items() if name.startswith("Cap"))
    yield "new ones", status.get("NoNewPrivs:") != "1" or status.get("Seccomp:") != "2"
    yield "root", lines[-1] == "0"
    yield "set-user-id programs", "reached" in ground.shell("su -c id < /dev/null && echo reached").output


def namespaces(ground: Ground) -> Probes:
    code = """
for flag in (0x20000, 0x10000000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000):
    works('unshare', flag)
    child = call('clone', flag | 17, 0, 0, 0, 0)
    if child == 0: os._exit(0)
    if child > 0: print('reached')
works('setns', os.open('/proc/self/ns/net', 0), 0)
works('clone3', ctypes.create_string_buffer(88), 88)
"""
    yield "calls", "reached" in ground.program(code).output
    yield (
        "unshare",
        "reached" in ground.shell("unshare -r true && echo reached; unshare -n true && echo reached").output,
    )


def signals(ground: Ground) -> Probes:
    ground.shell(f"kill -9 {ground.victim.pid} $PPID; kill -9 1; kill -9 -1")
    ground.snippet(f"for p in ({ground.victim.pid}, -1, 0, 1, os.getppid()):\n    quietly(os.kill, p, 9)")
    yield "victim", ground.victim.poll() is not None
    yield "states", ground.sandbox.python((), "1").output != "1\n"


def limits_of_others(ground: Ground) -> Probes:
    place = f"/proc/{ground.victim.pid}"
    before = _shown(place)
    code = f"""
import resource
for pid in ({ground.victim.pid}, {os.getpid()}):
    quietly(resource.prlimit, pid, resource.RLIMIT_CPU, (1, 1))
    quietly(os.setpriority, os.PRIO_PROCESS, pid, 19)
    quietly(os.sched_setaffinity, pid, {{0}})
    quietly(os.sched_setscheduler, pid, os.SCHED_IDLE, os.sched_param(0))
    call('ioprio_set', 1, pid, 3 << 13)
    call('ptrace', 16, pid, 0, 0)
quietly(os.setpriority, os.PRIO_USER, 0, 19)
call('ioprio_set', 3, 1000, 3 << 13)
"""
    ground.program(code)
    ground.snippet(code)
    yield "victim", _shown(place) != before or ground.victim.poll() is not None


def _shown(place: str) -> str:
    with open(f"{place}/limits") as limits, open(f"{place}/stat") as stat:  # noqa: PTH123
        return limits.read() + str(stat.read().rpartition(")")[2].split()[15:19])


def memory_of_others(ground: Ground) -> Probes:
    code = f"""
for pid in ({ground.victim.pid}, {os.getpid()}, 1):
    works('ptrace', 16, pid, 0, 0)
    works('pidfd_open', pid, 0) if pid != 1 else None
    works('kcmp', pid, 1, 0, 0, 0)
    if pid != 1 and quietly(open, f'/proc/{{pid}}/mem', 'r+b'): print('reached')
works('process_vm_readv', {os.getpid()}, None, 0, None, 0, 0)
"""
    yield "calls", "reached" in ground.program(code).output


def outliving(ground: Ground) -> Probes:
    for name, start in {
        "daemon": "setsid bash -c 'trap \"\" HUP TERM; while :; do sleep 0.05; done # MARK' > /dev/null 2>&1 & disown",
        "orphans": "( ( bash -c 'sleep 60; # MARK' & ) & )",
        "stopped": "bash -c 'kill -STOP $$; # MARK' &",
        "coprocess": "coproc bash -c 'while :; do :; done # MARK'",
    }.items():
        mark = f"outliving-{name}-{os.getpid()}"
        ground.shell(start.replace("MARK", mark) + "\nsleep 0.1")
        yield name, alive(mark)


def environment(ground: Ground) -> Probes:
    os.environ["TURNWISE_ESCAPE"] = ground.secret
    said = ground.shell("env; cat /proc/*/environ 2>&1 | tr '\\0' '\\n'").output
    said += ground.snippet("import os; print(os.environ)").output
    del os.environ["TURNWISE_ESCAPE"]
    yield "variables", ground.secret in said


def descriptors(ground: Ground) -> Probes:
    code = "print([d for d in range(3, 256) if quietly(os.fstat, d)])"
    yield "of a program", ground.program(code).output != "[]\n"
    yield "of a snippet", ground.snippet(code).output != "[]\n"


def terminals(ground: Ground) -> Probes:
    code = """
import fcntl
for place in ('/dev/tty', '/dev/console', '/dev/pts/0'):
    if quietly(open, place, 'r+b', 0): print('reached')
for descriptor in (0, 1, 2):
    if quietly(fcntl.ioctl, descriptor, 0x5412, b'x') is not None: print('reached')
"""
    yield "typing", "reached" in ground.program(code).output


def keyrings(ground: Ground) -> Probes:
    code = "works('keyctl', 0, -3, 1)\nworks('add_key', b'user', b'x', b'y', 1, -3)\nworks('request_key', b'user', b'x', None, 0)"
    yield "calls", "reached" in ground.program(code).output


FAMILIES = (
    stream_sockets, datagram_sockets, multipath_sockets, fast_open, listening, unix_sockets, other_sockets, io_uring,
    reading_the_host, writing_the_host, attributes_of_files, links_out_of_the_folder, swapping_the_folder, special_files,
    mounts, kernel_settings, rights, namespaces, signals, limits_of_others, memory_of_others, outliving, environment,
    descriptors, terminals, keyrings,
)  # fmt: skip
