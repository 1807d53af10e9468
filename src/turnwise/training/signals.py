"""Restores signal handlers that Lightning replaces at the start of training, such as the handlers of a launcher, and
reports the name of a signal that ends the run.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from lightning import Callback, LightningModule, Trainer
from lightning.fabric.plugins.environments import SLURMEnvironment
from lightning.pytorch.utilities.exceptions import SIGTERMException

from turnwise.errors import Interrupted


class OwnSignals(Callback):
    """Restores the handlers of SIGTERM and SIGUSR1 that were set before Lightning's ``fit`` replaced these handlers.

    Lightning's handler of SIGTERM calls a collective operation, while other processes may be in a different collective
    operation. Lightning's handler would also end the run when a requeued job gets SIGTERM. The handler of submitit
    ignores this SIGTERM on purpose.
    """

    def __init__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


def own_signals(world: int) -> list[OwnSignals]:
    """Returns a list with one :class:`OwnSignals` if the run has several processes or is a Slurm job, else []."""
    return [OwnSignals()] if world > 1 or SLURMEnvironment.detect() else []


@contextmanager
def named_signals() -> Iterator[None]:
    """Raises ``Interrupted`` with the signal's name if a signal ends training. Lightning itself exits without a
    message, and after SIGTERM with status 0.
    """
    try:
        yield
    except SIGTERMException:
        raise Interrupted(signal.SIGTERM) from None
    except SystemExit:  # Lightning raises it after Ctrl-C and then ignores SIGINT; a second Ctrl-C must end the process
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise Interrupted(signal.SIGINT) from None
