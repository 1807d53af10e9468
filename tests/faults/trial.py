"""One trial of the fault campaign: its starts, its moments, and what it may leave."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from processes import PATIENCE, Start
from servers import Server

MESSAGES = (  # the clear ones: what a start may say when it ends by itself without a result
    "no space left on this disk; free some space",
    "put back a copy, or remove",
)
STARTS = 8  # most of one trial
LEASH = 20.0  # s in which processes must end whose owner was killed
STOPPED = ": everything saved so far is kept, and the same command resumes the run"


class Unclear(Exception):
    """A start ended in a way that tells a person nothing."""


@dataclass(slots=True)
class Trial:
    """One run of the campaign.

    ``length``: seconds that the undisturbed run computes; moments are drawn from it. ``story``: what was done, for the record.
    ``hurts``: how often something that was there was hurt. ``torn``: damaged files, and the records that each lost by it.
    ``inside``: a process whose file systems the run is to see.
    """

    folder: Path
    overrides: list[str]
    rng: random.Random
    length: float
    server: Server | None = None
    story: list[str] = field(default_factory=list)
    starts: int = 0
    hurts: int = 0
    killed_workers: int = 0
    torn: dict[str, int] = field(default_factory=dict)
    inside: int | None = None

    def start(self) -> Start:
        self.starts += 1
        if self.starts > STARTS:
            raise Unclear(f"no result after {STARTS} starts")
        return Start(self.overrides, self.folder / f"start-{self.starts}.log", inside=self.inside)

    def hurt(self, what: str) -> None:
        """Keep it in the story, and that it met something."""
        self.hurts += 1
        self.story.append(what)

    def ended(self, start: Start) -> None:
        """A start that was to be hurt was done before.

        Raises:
            Unclear: it was not done, but failed by itself.
        """
        self.told(start)
        self.story.append(f"ended by itself with {start.status}")
        if start.status != 0:
            raise Unclear(f"start {self.starts} failed by itself with {start.status}: {start.said()[-600:]}")

    def asked(self) -> Server:
        """The server that the run asks."""
        assert self.server is not None
        return self.server

    def moments(self) -> Iterator[tuple[Start, str]]:
        """One to three starts, each still running at a moment of its own, and that moment for the story."""
        for _ in range(self.rng.randint(1, 3)):
            start, at = self.start(), self.rng.uniform(0.02, 0.95) * self.length
            if not start.compute(at):
                self.ended(start)
                return
            yield start, f"after {at:.2f} s of processor time"

    def finish(self, follow: Callable[[str], None] | None = None) -> None:
        """Start it until it has its result.

        Args:
            follow: does what a clear message says.

        Raises:
            Unclear: a start hangs, or ends without a result and without one clear message.
        """
        while True:
            start = self.start()
            if start.wait(PATIENCE):
                start.kill(group=True)
                raise Unclear(f"start {self.starts} hangs")
            start.clear()
            self.told(start)
            if start.status == 0:
                return
            message = self.clear_message(start)
            self.story.append(f"said: {message}")
            if follow is None:
                raise Unclear(f"nothing was wrong any more, but start {self.starts} said: {message}")
            follow(message)

    def clear_message(self, start: Start) -> str:
        """The one line that a start ended with.

        Raises:
            Unclear: there is none.
        """
        lines = [line for line in start.said().splitlines() if line.strip()]
        last = lines[-1] if lines else ""
        if start.status not in (1, 2) or "Traceback" in start.said() or not any(text in last for text in MESSAGES):
            raise Unclear(f"start {self.starts} ended with status {start.status}: {' | '.join(lines[-4:])[-600:]}")
        return last

    def told(self, start: Start) -> None:
        """Keep in the story what a start said of damage."""
        self.story += [f"told: {line.strip()}" for line in start.said().splitlines() if "damaged" in line]
