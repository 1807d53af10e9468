"""Implements the broker: process 1 of the sandbox of the Python server (``python_server.py``).

A Python state is a waiting process. A snippet runs in a copy of this process, and the copy then waits as the next
state. A snippet can do anything to its own process, so the broker trusts no state: the kernel tells which process sent
a message (SCM_CREDENTIALS), and the broker kills a state that has forbidden open files, by which states could exchange
data.

Requests and replies pass through standard input and output: four bytes of length, then JSON. Request: {"run": state,
"code": text, "free": [states]}. Reply: {"output", "status", "stopped", "state"} or {"lost": why}.
"""

# No pathlib, because its import would take longer than all other imports together.
# ruff: noqa: PTH208

import contextlib
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

TYPE_CHECKING = False
if TYPE_CHECKING:  # in the sandbox there are no files to import
    from turnwise.sandbox.channels import pair, receive, report, take
    from turnwise.sandbox.processes import PROCESSES, bare, ended, enter, lets_go, resident, stop_all
    from turnwise.sandbox.python_state import COPY, FIRST, ORDER, PR_SET_DUMPABLE, RUN, first_state

TICK = 0.02  # seconds between two checks of the memory and processes that a snippet uses
PATIENCE = 5  # seconds within which killed processes must have ended, and a state must have let go of a copy's socket
SMALL = 16 << 20  # a state of at most this many bytes is kept, no matter how much memory all other states take


class Broker:
    def __init__(self, settings):
        self.settings = settings
        self.states = {}  # number -> (process id, socket, bytes of memory beyond that of an empty state)
        self.killed = set()  # processes that the broker killed; some may not have ended yet
        self.count = 0
        ours, theirs = pair()
        process = os.fork()
        if not process:
            ours.close()
            first_state(theirs, settings)
        theirs.close()
        self.keep(process, ours, 0)
        self.empty = 0  # bytes of memory of the first (empty) state, measured after the first snippet

    def keep(self, process, channel, size):
        self.states[self.count] = (process, channel, size)
        self.count += 1
        return self.count - 1

    def free(self, number):
        process, channel, _ = self.states.pop(number, (None, None, 0))
        self.end(process, channel)

    def end(self, process, channel):
        if channel:
            channel.close()
        if process:
            with contextlib.suppress(ProcessLookupError):  # it may have ended itself
                os.kill(process, signal.SIGKILL)
            self.killed.add(process)

    def strangers(self):
        """Returns the ids of all processes in the sandbox except those of the broker and of the kept states."""
        there = set(map(int, filter(str.isdigit, os.listdir(PROCESSES))))
        self.killed &= there
        return there - {process for process, *_ in self.states.values()} - {os.getpid()}

    def sweep(self, speaker):
        """Kills all processes except ``speaker`` and the kept states. Returns ``speaker`` if alive, else None.

        ``speaker`` is the id of the process that reported the end of the snippet, or None. All processes are stopped by
        one signal before the first is killed, because a fork bomb creates processes faster than they can be killed.
        """
        stop_all()
        strangers = self.strangers()
        doomed = strangers - {speaker}
        for process in doomed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        while not all(map(ended, doomed - self.killed)) and time.monotonic() < end:
            time.sleep(0.0005)
        return speaker if speaker in strangers else None

    def excess(self):
        """Returns the name of the limit that the running snippet and its children exceed, or an empty text."""
        running = self.strangers()
        if len(running) > self.settings["processes"]:
            return "processes"
        return "memory" if sum(map(resident, running)) > self.settings["memory"] else ""

    def copy(self, number):
        """Orders a state to copy itself. Returns the socket on which the copy will report."""
        process, channel, _ = self.states[number]
        ours, theirs = pair()
        try:
            self.order(process, channel, COPY, b"", theirs.fileno())
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def order(self, process, channel, kind, text, descriptor):
        most = len(self.states) + 1 + self.settings["processes"]
        resource.prlimit(process, resource.RLIMIT_NPROC, (most, self.settings["rlimits"]["RLIMIT_NPROC"]))
        channel.settimeout(self.settings["seconds"])
        first = FIRST - ORDER.size
        given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=i", descriptor))]
        channel.sendmsg([ORDER.pack(kind, len(text)) + text[:first]], given)
        os.kill(process, signal.SIGCONT)  # after the order was sent, so that the process wakes only once
        channel.sendall(text[first:])

    def run(self, number, code):
        if number not in self.states:
            return {"lost": "the state does not exist"}
        maker, own, _ = self.states[number]
        output, status, speaker = b"", None, None
        read, write = os.pipe()
        os.set_blocking(read, False)
        try:
            channel = self.copy(number)
            _, _, stopped, copy = self.follow(channel, read)
            copied = copy in self.strangers() and lets_go(maker, channel, PATIENCE)
            if copied:
                output, status, stopped, speaker = self.execute(copy, channel, code.encode(), read, write)
        except OSError as error:
            self.sweep(None)
            return {"lost": f"the state's process is gone ({error.strerror})"}
        finally:
            os.close(read)
            os.close(write)
        heir = self.sweep(speaker)
        if heir is not None and not bare(heir, channel, ()):
            self.end(heir, None)
            heir = None
        if not bare(maker, own, () if copied else (channel.peer,)):  # a state that is late still has the copy's socket
            self.free(number)  # the state has a forbidden open file: a snippet may have changed its code
        size = 0
        if heir is not None:
            self.empty = self.empty or resident(self.states[0][0])
            size = max(0, resident(heir) - self.empty)
            if size > SMALL and size + sum(kept for _, _, kept in self.states.values()) > self.settings["kept"]:
                self.end(heir, None)
                heir, stopped = None, "memory"
        if heir is None:
            channel.close()
            status = None if stopped else 1
        state = number if heir is None else self.keep(heir, channel, size)
        return {"output": output.decode("utf-8", "replace"), "status": status, "stopped": stopped, "state": state}

    def execute(self, process, channel, text, read, write):
        """Runs a snippet in a process, the copy of a state. Returns the four results of :meth:`follow`."""
        try:
            self.order(process, channel, RUN, text, write)
        except TimeoutError:
            return b"", None, "time", None
        return self.follow(channel, read)

    def follow(self, channel, read):
        """Waits until a snippet ends or exceeds a limit. Returns output, exit status, limit name and process id."""
        output, end = bytearray(), time.monotonic() + self.settings["seconds"]
        waiting = select.poll()
        for descriptor in (channel.fileno(), read, 0):
            waiting.register(descriptor, select.POLLIN)
        checked = time.monotonic()
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll(TICK * 1000)}
            if 0 in ready:  # the host sends no request while a snippet runs, so the host has ended
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


def main():
    if os.getpid() != 1:  # the server sends signals to all processes that it can reach
        sys.exit("the Python server must be process 1 of a sandbox")
    settings = json.loads(sys.argv[1])
    enter()
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
