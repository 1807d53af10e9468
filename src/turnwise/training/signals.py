"""Signals of a run: with a launcher they stay the launcher's, and one that ends the run is named."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException

from turnwise.errors import Interrupted


class OwnSignals(Callback):
    """Gives SIGTERM and SIGUSR1 back to whoever had them before ``fit``.

    Lightning's handler of SIGTERM calls a collective from inside the handler, which meets whatever collective the other
    processes are in; and a requeued job's SIGTERM, which submitit ignores on purpose, would end the run.
    """

    def __init__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def own_signals(world: int) -> list[OwnSignals]:
    """The callback, for runs of several processes and for jobs of Slurm."""
    return [OwnSignals()] if world > 1 or SLURMEnvironment.detect() else []


@contextmanager
def named_signals() -> Iterator[None]:
    """Lightning answers a signal by leaving without a word, after SIGTERM with the status of a run that is done.

    Raises:
        Interrupted: in its place.
    """
    try:
        yield
    except SIGTERMException:
        raise Interrupted(signal.SIGTERM) from None
    except SystemExit:  # after Ctrl-C, which Lightning then ignores; a second one must end what is waited for
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise Interrupted(signal.SIGINT) from None
