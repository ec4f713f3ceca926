"""Signals during a block that must not be left half done."""

from __future__ import annotations

import signal

import pytest

from workbench.search.interrupts import uninterrupted


def test_interrupt_in_the_block_is_raised_when_it_has_ended() -> None:
    done = []

    def work() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("half")
            done.append("whole")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert done == ["half", "whole"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_error_in_the_block_is_not_replaced_by_an_interrupt() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(ValueError, match="disk"), uninterrupted():
            raise ValueError("disk")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
