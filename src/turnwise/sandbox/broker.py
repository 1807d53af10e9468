"""Implements the broker: process 1 of the sandbox of the Python server (``python_server.py``).

A Python state is a waiting process. A snippet runs in a copy of this process, and the copy then waits as the next
state. To save time, the broker copies the state that the next snippet will probably use in advance. A snippet can do
anything to its own process, so the broker trusts no state: the kernel tells which process sent a message
(SCM_CREDENTIALS), and the broker kills a state that has forbidden open files, by which states could exchange data.

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
AHEAD = 0.5  # time limit in seconds for making a copy in advance, while no request waits
BESIDE = 0.05  # after a snippet, seconds to wait for the copy that the broker ordered while the snippet ran
WARM = 0.002  # seconds that a new copy may run while there is no request
PATIENCE = 5  # seconds within which killed processes must have ended
SMALL = 16 << 20  # a state of at most this many bytes is kept, no matter how much memory all other states take


class Broker:
    def __init__(self, settings):
        self.settings = settings
        self.states = {}  # number -> (process id, socket, bytes of memory beyond that of an empty state)
        self.copies = {}  # number -> (process id of the copy or None until the copy reports, socket); latest copy last
        self.late = {}  # number -> inodes of unused sockets that the state with this number may still hold open
        self.asked = set()  # states on which a snippet ran
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
        self.likely = 0  # the state on which the next snippet will probably run

    def keep(self, process, channel, size):
        self.states[self.count] = (process, channel, size)
        self.count += 1
        return self.count - 1

    def free(self, number):
        self.drop(number)
        self.late.pop(number, None)
        self.asked.discard(number)
        process, channel, _ = self.states.pop(number, (None, None, 0))
        self.end(process, channel)

    def drop(self, number):
        """Ends the copy of the state ``number``, if the broker has made a copy in advance."""
        process, channel = self.copies.pop(number, (None, None))
        if channel and process is None:
            self.excuse(number, channel)
        self.end(process, channel)

    def excuse(self, number, channel):
        self.late.setdefault(number, set()).add(channel.peer)

    def end(self, process, channel):
        if channel:
            channel.close()
        if process:
            with contextlib.suppress(ProcessLookupError):  # it may have ended itself
                os.kill(process, signal.SIGKILL)
            self.killed.add(process)

    def known(self):
        """Returns the process ids of the broker, of the kept states, and of their finished copies."""
        return {process for process, *_ in (*self.states.values(), *self.copies.values())} | {os.getpid()}

    def strangers(self):
        """Returns the ids of all processes in the sandbox except those that :meth:`known` returns."""
        there = set(map(int, filter(str.isdigit, os.listdir(PROCESSES))))
        self.killed &= there
        return there - self.known()

    def sweep(self, speaker):
        """Kills all processes except ``speaker``, kept states and copies. Returns ``speaker`` if alive, else None.

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
        unmet = self.meet(0)
        allowed = sum(resident(self.states[number][0]) for number in unmet)  # a copy is as large as its original
        running = self.strangers()
        if len(running) > self.settings["processes"] + len(unmet):
            return "processes"
        return "memory" if sum(map(resident, running)) > self.settings["memory"] + allowed else ""

    def meet(self, seconds):
        """Waits ``seconds`` for the reports of ordered copies. Returns the states whose copies have not reported."""
        unmet = {number: channel for number, (process, channel) in self.copies.items() if process is None}
        end = time.monotonic() + seconds
        while unmet:
            ready, _, _ = select.select(list(unmet.values()), [], [], max(0, end - time.monotonic()))
            for number in [number for number, channel in unmet.items() if channel in ready]:
                channel = unmet.pop(number)
                speaker, maker = report(channel)[1], self.states[number][0]
                if speaker is not None and speaker not in self.known() and lets_go(maker, channel, BESIDE):
                    self.copies[number] = (speaker, self.copies[number][1])
                else:
                    self.drop(number)
            if not ready:
                break
        return list(unmet)

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
        most = len(self.states) + len(self.copies) + 1 + self.settings["processes"]
        resource.prlimit(process, resource.RLIMIT_NPROC, (most, self.settings["rlimits"]["RLIMIT_NPROC"]))
        channel.settimeout(self.settings["seconds"])
        first = FIRST - ORDER.size
        given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=i", descriptor))]
        channel.sendmsg([ORDER.pack(kind, len(text)) + text[:first]], given)
        os.kill(process, signal.SIGCONT)  # after the order was sent, so that the process wakes only once
        channel.sendall(text[first:])

    def ahead(self):
        """Copies the state that the next snippet will probably use, until the copy is ready or a request arrives."""
        number = self.likely
        if not self.begin(number):
            return
        ready, _, _ = select.select([0, self.copies[number][1]], [], [], AHEAD)
        if 0 in ready:
            return
        for late in self.meet(0):
            self.drop(late)
        if select.select([0], [], [], WARM)[0]:
            return
        stop_all()

    def begin(self, number):
        """Orders a state to copy itself, unless it has a copy or is making a copy. Returns whether it got the order."""
        if number not in self.states or number in self.copies:
            return False
        if len(self.copies) >= self.settings["copies"]:
            self.drop(next(iter(self.copies)))
        try:
            self.copies[number] = (None, self.copy(number))
        except OSError:
            return False
        return True

    def run(self, number, code):
        if number not in self.states:
            return {"lost": "the state does not exist"}
        for other in [other for other, (process, _) in self.copies.items() if process is None and other != number]:
            self.drop(other)  # a copy that has not reported must not outlive a snippet
        read, write = os.pipe()
        os.set_blocking(read, False)
        try:
            channel, output, status, stopped, speaker = self.attempt(number, code.encode(), read, write)
        except OSError as error:
            self.sweep(None)
            return {"lost": f"the state's process is gone ({error.strerror})"}
        finally:
            os.close(read)
            os.close(write)
        for late in self.meet(BESIDE):
            self.drop(late)
        heir = self.sweep(speaker)
        if heir is not None and not bare(heir, channel, ()):
            self.end(heir, None)
            heir = None
        making = [self.copies[number][1].peer] if number in self.copies else []
        maker, own, _ = self.states[number]
        if not bare(maker, own, {*making, *self.late.get(number, ())}):
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
        self.likely = number if number in self.asked else state  # rollouts branch at a state that gets a second snippet
        self.asked.add(number)
        return {"output": output.decode("utf-8", "replace"), "status": status, "stopped": stopped, "state": state}

    def attempt(self, number, text, read, write):
        """Runs a snippet in a copy of a state. Returns the copy's socket and the four results of :meth:`follow`."""
        copy, channel = self.copies.pop(number, (None, None))
        channel = channel or self.copy(number)
        if copy is None:
            _, _, stopped, copy = self.follow(channel, read)
            if copy not in self.strangers() or not lets_go(self.states[number][0], channel, PATIENCE):
                self.excuse(number, channel)
                return channel, b"", None, stopped, None
        try:
            self.order(copy, channel, RUN, text, write)
        except TimeoutError:
            return channel, b"", None, "time", None
        if number in self.asked:  # rollouts branch at this state, so its next copy is made while the snippet runs
            self.begin(number)
        return channel, *self.follow(channel, read)

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
        broker.ahead()
        request = receive()
        for number in request["free"]:
            broker.free(number)
        answer = broker.run(request["run"], request["code"])


if __name__ == "__main__":
    main()
