"""Runs agent programs in the sandbox. A thread of this process waits for the end of each program."""

from __future__ import annotations

import shlex
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from turnwise.envs.agent.gateway import Desk, leave, serve
from turnwise.sandbox.folder_value import Tree
from turnwise.sandbox.sandbox import HOST, Bubblewrap, CallResult, Door

PORT = 8000  # the gateway's port inside the sandbox, where no other program listens


def with_variables(command: str, variables: Mapping[str, str]) -> str:
    """Returns a bash script that sets the environment variables and then runs ``command``."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()) + command


class Program:
    """A running agent program.

    The environment variable ``OPENAI_BASE_URL`` gives the program the gateway's address, and ``OPENAI_API_KEY`` the
    token of the episode.

    Args:
        command: a line of bash that starts the program.
        tree: the initial content of the program's folder.
        variables: additional environment variables of the program.
    """

    def __init__(self, sandbox: Bubblewrap, command: str, tree: Tree, variables: Mapping[str, str]) -> None:
        self.desk = Desk()
        self.result: Future[tuple[CallResult, Tree]] = Future()
        self._kill: Callable[[], None] | None = None
        self._closed = False
        self._lock = threading.Lock()
        told = {"OPENAI_BASE_URL": f"http://{HOST}:{PORT}/v1", "OPENAI_API_KEY": self.desk.token, **variables}
        script = with_variables(command, told)
        threading.Thread(target=self._run, args=(sandbox, script, tree), name="agent", daemon=True).start()

    def close(self) -> None:
        """Stops the program without waiting until it has ended."""
        with self._lock:
            self._closed = True
            kill, self._kill = self._kill, None
        if kill is not None:
            kill()

    def _run(self, sandbox: Bubblewrap, script: str, tree: Tree) -> None:
        try:
            self.result.set_result(sandbox.shell(script, tree, Door(PORT, self._opened)))
        except BaseException as error:  # the error is stored and raised where the result is read
            self.result.set_exception(error)
        finally:
            with self._lock:
                self._kill = None
            leave(self.desk)

    def _opened(self, listener: socket.socket, kill: Callable[[], None]) -> None:
        serve(listener, self.desk)
        with self._lock:
            self._kill = kill
        if self._closed:
            self.close()
