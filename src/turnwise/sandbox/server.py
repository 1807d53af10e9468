"""The Python server: process 1 of a sandbox of its own, given to the interpreter as text. Standard library only.

A state is a process that waits. To run a snippet it forks: the copy runs the snippet and then waits as the next state, the
original still is the state before. Snippets may do what they like to the process that they run in, so the broker (process 1)
believes none of them: the kernel tells it who speaks (SCM_CREDENTIALS), what is not a kept state is killed after each
snippet, and kept states are stopped until they are asked again.

Requests and replies on standard input and output: four bytes of length, then JSON.
Request: {"run": state, "code": text, "free": [states]}. Reply: {"output", "status", "stopped", "state"} or {"lost": why}.
"""

import ast
import ctypes
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import traceback

TICK = 0.02  # seconds between two looks at what a snippet uses
PR_SET_DUMPABLE, PR_SET_SECCOMP, SECCOMP_FILTER = 4, 22, 2


class Filter(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("rules", ctypes.c_char_p)]  # noqa: RUF012


# -- a state


def execute(code, names):
    """Run a snippet as a console would: the value of a last expression is shown. Returns an exit status."""
    try:
        body = ast.parse(code, "<snippet>").body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<snippet>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<snippet>", "eval"), names)
            if value is not None:
                print(repr(value))
        return 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # not the frame of this function
        traceback.print_exception(error)
        return 1


def serve(own):
    """Wait, fork, run: the life of states. The copy goes round the same loop with a socket of its own."""
    names = {"__name__": "__main__"}
    nowhere = os.open("/dev/null", os.O_RDWR)
    while True:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        header, (output, fresh), _, _ = socket.recv_fds(own, 4, 2)
        left, parts = struct.unpack("=I", header)[0], []
        while left:
            parts.append(own.recv(min(left, 1 << 16)))
            left -= len(parts[-1])
        if os.fork():
            os.close(output)
            os.close(fresh)
            continue
        own.close()
        own = socket.socket(fileno=fresh)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        status = execute(b"".join(parts).decode(), names)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # replaced or closed by the snippet
                status = status or 1
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        own.send(struct.pack("=i", status & 0xFF))


def first_state(own, settings):
    """Bind this process to the limits of snippets, then serve."""
    for name, value in settings["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    rules = bytes.fromhex(settings["filter"])
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    if library.prctl(PR_SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(Filter(len(rules) // 8, rules)), 0, 0):
        raise OSError(ctypes.get_errno(), "the filter of system calls is refused")
    nowhere = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    serve(own)


# -- the broker


class Broker:
    def __init__(self, settings):
        self.settings = settings
        self.states = {}  # number -> (process, socket)
        self.count = 0
        ours, theirs = socket.socketpair()
        process = os.fork()
        if not process:
            ours.close()
            first_state(theirs, settings)
        theirs.close()
        self.keep(process, ours)

    def keep(self, process, channel):
        self.states[self.count] = (process, channel)
        self.count += 1
        return self.count - 1

    def free(self, number):
        process, channel = self.states.pop(number, (None, None))
        if process:
            channel.close()
            os.kill(process, signal.SIGKILL)

    def strangers(self):
        """Processes that are no kept state."""
        known = {process for process, _ in self.states.values()} | {os.getpid()}
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in known]

    def sweep(self, kept=None):
        """Kill what is no kept state until nothing is left of it: a process may fork while others are being killed."""
        while others := [process for process in self.strangers() if process != kept and not ended(process)]:
            for process in others:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def excess(self):
        """The limit that the running snippet and its children pass, if any."""
        running = self.strangers()
        if len(running) > self.settings["processes"]:
            return "processes"
        return "memory" if sum(map(resident, running)) > self.settings["memory"] else ""

    def run(self, number, code):
        if number not in self.states:
            return {"lost": "the state is not there"}
        process, channel = self.states[number]
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        read, write = os.pipe()
        os.set_blocking(read, False)
        text = code.encode()
        channel.settimeout(self.settings["seconds"])
        try:
            os.kill(process, signal.SIGCONT)
            socket.send_fds(channel, [struct.pack("=I", len(text))], [write, theirs.fileno()])
            channel.sendall(text)
        except TimeoutError:
            text = None
        except OSError as error:
            return {"lost": f"the state's process is gone ({error.strerror})"}
        finally:
            os.close(write)
            theirs.close()
        output, status, stopped, speaker = self.follow(ours, read) if text is not None else (b"", None, "time", None)
        os.close(read)
        os.kill(process, signal.SIGSTOP)
        heir = speaker if speaker in self.strangers() else None
        if heir is not None:
            os.kill(heir, signal.SIGSTOP)
        self.sweep(heir)
        if heir is None:
            ours.close()
            status = None if stopped else 1
        state = number if heir is None else self.keep(heir, ours)
        return {"output": output.decode("utf-8", "replace"), "status": status, "stopped": stopped, "state": state}

    def follow(self, channel, read):
        """Read what a snippet prints until it ends or a limit does: (output, status, limit, who reported the end)."""
        output, end = bytearray(), time.monotonic() + self.settings["seconds"]
        waiting = select.poll()
        for descriptor in (channel.fileno(), read, 0):
            waiting.register(descriptor, select.POLLIN)
        checked = time.monotonic()
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll(TICK * 1000)}
            if 0 in ready:  # nobody asks while a snippet runs: the other side is gone
                os._exit(0)
            if read in ready and not take(read, output, self.settings["output"]):
                waiting.unregister(read)
            if len(output) > self.settings["output"]:
                return bytes(output[: self.settings["output"]]), None, "output", None
            if channel.fileno() in ready:
                said, speaker = report(channel)
                take(read, output, self.settings["output"])
                return bytes(output[: self.settings["output"]]), said, "", speaker
            now = time.monotonic()
            if now > end:
                return bytes(output), None, "time", None
            if now - checked > TICK:
                checked = now
                if limit := self.excess():
                    return bytes(output), None, limit, None


def take(read, output, most):
    """Read what is there, up to one byte more than is wanted; False at the end of the stream."""
    while len(output) <= most:
        try:
            chunk = os.read(read, 1 << 16)
        except BlockingIOError:
            return True
        if not chunk:
            return False
        output += chunk
    return True


def report(channel):
    """A state's word that its snippet ended: (status, process), or (None, None) where it died without one."""
    space = socket.CMSG_SPACE(struct.calcsize("=3i")) + socket.CMSG_SPACE(4 * 16)
    try:
        said, extra, _, _ = channel.recvmsg(4, space)
    except OSError:
        return None, None
    for _, kind, data in extra:
        if kind == socket.SCM_CREDENTIALS and len(said) == 4:
            return struct.unpack("=i", said)[0], struct.unpack("=3i", data)[0]
    return None, None


def resident(process):
    try:
        with open(f"/proc/{process}/statm") as stream:
            return int(stream.read().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def ended(process):
    """Whether a process is gone or a zombie that its parent has not asked for."""
    try:
        with open(f"/proc/{process}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def receive():
    header = sys.stdin.buffer.read(4)
    if len(header) < 4:
        os._exit(0)
    return json.loads(sys.stdin.buffer.read(struct.unpack("=I", header)[0]))


def replay(snippets):
    """Run snippets one after the other, the last one aloud: a state where there are no namespaces. Exits with its status."""
    names = {"__name__": "__main__"}
    aloud = os.dup(1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    for code in snippets[:-1]:
        execute(code, names)
        sys.stdout.flush()
    os.dup2(aloud, 1)
    os.dup2(aloud, 2)
    status = execute(snippets[-1], names)
    sys.stdout.flush()
    os._exit(status & 0xFF)


def main():
    if sys.argv[1] == "replay":
        with open(sys.argv[2]) as stream:
            replay(json.load(stream))
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    broker = Broker(settings)
    answer = {"ready": sys.version.split()[0]}
    while True:
        text = json.dumps(answer).encode()
        sys.stdout.buffer.write(struct.pack("=I", len(text)) + text)
        sys.stdout.buffer.flush()
        request = receive()
        for number in request["free"]:
            broker.free(number)
        answer = broker.run(request["run"], request["code"])


if __name__ == "__main__":
    main()
