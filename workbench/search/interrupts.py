"""Interrupts that wait for a moment at which nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Deliver SIGINT and SIGTERM when the block has ended.

    Handlers of Python are put off rather than signals blocked: another thread of the process would get those. Only the
    main thread has handlers; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[tuple[int, FrameType | None]] = []

    def put_off(number: int, frame: FrameType | None) -> None:
        caught.append((number, frame))

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, put_off)
    try:
        yield
    finally:
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, handler)
    for caught_number, frame in caught[:1]:
        handler = before[signal.Signals(caught_number)]
        if callable(handler):
            handler(caught_number, frame)
