"""The signals that stop a program in an orderly way."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def stop_signals_interrupt() -> Iterator[None]:
    """Within it SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does.

    So does SIGINT where the shell had it ignored, as it does for what it starts in the background.
    For the main thread, around the supervisor's own context, so that each of the three signals
    leads to an orderly stop.
    """
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.default_int_handler) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
