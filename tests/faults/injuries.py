"""The faults of the campaign: each runs train.py in a folder, hurts it at random moments, and brings it to its end."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from processes import PATIENCE, TICK, descendants
from trial import LEASH, STOPPED, Trial, Unclear

TORN = ("checkpoints/last.ckpt", "result.json", "rollouts/train.jsonl", "metrics.jsonl", "spool/0-0.bin")


def kill_trainer(trial: Trial) -> None:
    """kill -9 of the trainer alone, one to three times; then on to the end. What it had begun must end by itself."""
    killed = []
    for start, when in trial.moments():
        start.kill()
        killed.append(start)
        trial.hurt(f"killed {when}")
    trial.finish()
    for start in killed:
        if left := start.left(LEASH):
            raise Unclear(f"processes that the killed trainer had begun run on: {left}")


def kill_job(trial: Trial) -> None:
    """kill -9 of its whole process group, one to three times; then on to the end."""
    for start, when in trial.moments():
        start.kill(group=True)
        start.clear()
        trial.hurt(f"killed {when}")
    trial.finish()


def terminate(trial: Trial) -> None:
    """SIGTERM, one to three times, as a cluster sends it; the run ends in its own time and with a word; then on to the end."""
    for start, when in trial.moments():
        os.kill(start.pid, signal.SIGTERM)
        if start.wait(PATIENCE):
            raise Unclear(f"start {trial.starts} runs on after SIGTERM")
        start.clear()
        trial.hurt(f"SIGTERM {when}: {start.status}")
        word = start.said().splitlines()[-1:] == [f"stopped by SIGTERM{STOPPED}"]
        if start.status not in (0, -signal.SIGTERM) and not (start.status == 128 + signal.SIGTERM and word):
            raise Unclear(f"start {trial.starts} ended with {start.status} after SIGTERM: {start.said()[-600:]}")
        if start.status == 0:
            break
    trial.finish()


def kill_workers(trial: Trial) -> None:
    """kill -9 of worker processes of the world, several times within one start; the run goes on by itself."""
    start = trial.start()
    for _ in range(trial.rng.randint(1, 3)):
        if not start.compute(start.computed + trial.rng.uniform(0.02, 0.3) * trial.length):
            break
        while start.wait(TICK) and not (workers := list(descendants(start.pid))):
            pass
        if not start.running():
            break
        victim = trial.rng.choice(workers)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            trial.killed_workers += 1
            trial.hurt(f"killed worker {workers.index(victim) + 1} of {len(workers)}")
    if start.wait(PATIENCE):
        start.kill(group=True)
        raise Unclear("it hangs after a worker was killed")
    start.clear()
    if start.status != 0:
        trial.story.append(f"said: {trial.clear_message(start)}")
        trial.finish()


def tear(trial: Trial) -> None:
    """kill -9, then damage a file that is there, as a failing disk would; then on to the end, as the messages say."""
    start, at = trial.start(), trial.rng.uniform(0.3, 1.6) * trial.length  # of processor time; often after the end
    if start.compute(at):
        start.kill(group=True)
    else:
        trial.ended(start)
    start.clear()
    run = trial.folder / "run"
    there = [name for name in TORN if (run / name).is_file() and (run / name).stat().st_size]
    chosen = trial.rng.sample(there, min(len(there), trial.rng.randint(1, 2)))
    if "result.json" in there and "result.json" not in chosen:
        chosen.append("result.json")  # a finished run is not started again, and looks at nothing
    for name in chosen:
        there_before = records(run / name)
        trial.hurt(f"{name}: {damage_file(run / name, trial.rng)}")
        trial.torn[name] = len(there_before) - len([record for record in records(run / name) if record in there_before])
    before = run / "checkpoints" / "before.ckpt"
    if "checkpoints/last.ckpt" in "".join(trial.story) and before.exists() and trial.rng.random() < 0.2:
        trial.story.append(f"checkpoints/before.ckpt: {damage_file(before, trial.rng)}")

    def follow(message: str) -> None:
        if "put back a copy, or remove" not in message:
            raise Unclear(f"said: {message}")
        shutil.rmtree(run / "checkpoints")

    trial.finish(follow)


def damage_file(path: Path, rng: random.Random) -> str:
    """Cut it off, blank a block, or turn the top bit of a few bytes: text of ours is ASCII, so that is never text again."""
    content = bytearray(path.read_bytes())
    kind, place = rng.choice(("cut", "blank", "flip")), rng.randrange(len(content))
    if kind == "cut":
        del content[place:]
    elif kind == "blank":
        content[place : place + 512] = bytes(len(content[place : place + 512]))
    else:
        for at in (place, *(rng.randrange(len(content)) for _ in range(3))):
            content[at] ^= 0x80
    path.write_bytes(content)
    return f"{kind} at {place} of {len(content)}"


def records(path: Path) -> list[bytes]:
    """Lines that are JSON."""
    found = []
    for line in path.read_bytes().splitlines():
        with suppress(ValueError):
            json.loads(line)
            found.append(line)
    return found


def fill_disk(trial: Trial) -> None:
    """A disk that is too small one to three times, then large enough."""
    from disk import Disk

    at = trial.folder / "disk"
    at.mkdir()
    disk = Disk(at, kilobytes=4)
    if not disk.mounted:
        disk.close()
        raise Unclear("this system lets no user mount a file system of their own: leave out the fault disk")
    try:
        trial.inside = (
            disk.holder.pid
        )  # the run finds the disk under its own name, which a path below /proc would not be
        there = [f"paths.out={at}/run", f"paths.cache={at}/cache"]
        trial.overrides = [o for o in trial.overrides if not o.startswith("paths.")] + there
        sizes = sorted(round(10 ** trial.rng.uniform(0.9, 4.1)) for _ in range(trial.rng.randint(1, 3)))
        trial.story.append(f"a disk of {', '.join(map(str, sizes))} KiB")
        disk.resize(sizes[0])
        sizes = [*sizes[1:], 60_000]

        def follow(message: str) -> None:
            if "no space left" not in message or not sizes:
                raise Unclear(f"said: {message}")
            trial.hurt(f"full: {message}")
            disk.resize(sizes.pop(0))

        trial.finish(follow)
        shutil.copytree(disk.path / "run", trial.folder / "run")
    finally:
        disk.close()


def _server_away(trial: Trial, away: Callable[[], None], back: Callable[[], None], most: float) -> None:
    """The server that the run asks goes away and comes back while the run waits for it; the run never ends."""
    start = trial.start()
    for _ in range(trial.rng.randint(1, 3)):
        if not start.compute(start.computed + trial.rng.uniform(0.02, 0.3) * trial.length):
            break
        away()
        seconds = trial.rng.uniform(0.1, most)
        trial.hurt(f"away for {seconds:.2f} s")
        start.wait(seconds)
        back()
    if start.wait(PATIENCE):
        start.kill(group=True)
        raise Unclear("it hangs after its server was away")
    start.clear()
    if start.status != 0:
        raise Unclear(f"ended with status {start.status}: {start.said()[-600:]}")


def kill_server(trial: Trial) -> None:
    server = trial.asked()
    _server_away(trial, lambda: server.kill(trial.rng), server.start, 1.0)


def stall_server(trial: Trial) -> None:
    server = trial.asked()
    _server_away(trial, server.hold, server.release, 4.0)


FAULTS: dict[str, Callable[[Trial], None]] = {
    "trainer": kill_trainer,
    "job": kill_job,
    "term": terminate,
    "worker": kill_workers,
    "server": kill_server,
    "stall": stall_server,
    "torn": tear,
    "disk": fill_disk,
}
