"""A callback that looks at its own process as a run goes on: memory, file handles, threads, files on disk.

+callbacks.watch={_target_: watch.Watch, every: 60, out: .../samples.jsonl}
"""

from __future__ import annotations

import gc
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from lightning import Callback, LightningModule, Trainer
from processes import descendants

MB = 2**20


class Watch(Callback):
    """Appends one sample to ``out`` after every ``every``-th iteration, as a JSON line.

    Garbage is collected first, so that what counts as memory is what is still referred to, and what the allocator keeps of
    what was freed. Nothing is given back to the system for the measurement (no ``malloc_trim``): a sample shows what
    somebody who looks at the process would see.

    Args:
        every: iterations between two samples.
        out: the file of samples.
        folder: the run's, whose files are counted.
    """

    def __init__(self, every: int, out: str, folder: str) -> None:
        self.every, self.out, self.folder = every, Path(out), Path(folder)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        done = trainer.current_epoch + 1
        if done % self.every == 0:
            gc.collect()
            with self.out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({"iteration": done, **look(self.folder)}) + "\n")


def look(folder: Path, pid: int | None = None) -> dict[str, Any]:
    """What a process holds now. Sizes in MiB: its own resident memory, that of the processes below it, of the run's folder."""
    pid = pid or os.getpid()
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    children = list(descendants(pid))
    return {
        "time": round(time.time(), 2),
        "cpu": round(time.process_time(), 2),
        "rss": round(resident(pid) / MB, 3),
        "children_rss": round(sum(map(resident, children)) / MB, 3),
        "children": len(children),
        "fds": sum(not name.endswith(".ttf") for name in handles(pid)),  # matplotlib opens each font of a page once
        "threads": len(os.listdir(f"/proc/{pid}/task")),  # noqa: PTH208
        "objects": len(gc.get_objects()),
        "files": len(sizes),
        "disk": round(sum(sizes) / MB, 3),
    }


def handles(pid: int) -> list[str]:
    """What the process's open handles point to."""
    names = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile, as the handle of this very list is
            names.append(str(entry.readlink()))
    return names


def resident(pid: int) -> int:
    """Bytes of resident memory; 0 for a process that is gone."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
