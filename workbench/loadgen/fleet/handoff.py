"""From prefill to decode replicas: who takes a request over, and when its KV cache is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from workbench.loadgen.fleet.calendar import Calendar
from workbench.loadgen.fleet.link import Link
from workbench.loadgen.fleet.pool import Pool
from workbench.loadgen.fleet.replica import Replica

Drained = Callable[[Replica, float], None]
"""Told of each replica that may have nothing to do any more, and when."""


class Desk(Protocol):
    """Whoever answers for the requests of the fleet."""

    def num_known_tokens(self, row: int) -> int:
        """Prompt and answer so far."""
        ...

    def key(self, row: int) -> bytes:
        """What routing by prefix goes by."""
        ...

    def send(self, row: int, replica: Replica, now_s: float, *, num_computed: int) -> None: ...

    def lose(self, row: int, now_s: float, reason: str) -> None:
        """What was computed for a request is gone."""
        ...


@dataclass(eq=False, slots=True, kw_only=True)
class _Move:
    """One KV cache on its way."""

    row: int
    sender: Replica
    receiver: Replica
    num_tokens: int


class Handoff:
    """The receiver is chosen when the prompt is done. The sender's blocks are free from then on; the receiver takes its
    own when the cache is there and the scheduler admits the request."""

    def __init__(self, link: Link, pool: Pool, calendar: Calendar, desk: Desk, drained: Drained) -> None:
        self.link, self._pool, self._calendar, self._desk, self._drained = link, pool, calendar, desk, drained
        self._moves: dict[int, _Move] = {}

    def least_waiting(self) -> Replica | None:
        """The receiver with the shortest queue; None where nobody is up."""
        return min(self._pool.serving, key=lambda replica: replica.num_waiting, default=None)

    def expect(self, row: int, sender: Replica, when_s: float) -> None:
        """A prompt will be done at a time that other replicas may not have reached."""
        sender.num_outgoing += 1
        self._calendar.add(when_s, partial(self._begin, row, sender))

    def drop(self, engine: Replica, now_s: float) -> list[int]:
        """An engine died; returns the rows whose KV was on its way from or to it."""
        lost = [move for move in self._moves.values() if engine in (move.sender, move.receiver)]
        for move in lost:
            self._end(move)
            self._drained(move.sender, now_s)
        return [move.row for move in lost]

    def _begin(self, row: int, sender: Replica, now_s: float) -> None:
        receiver = None if sender.is_dead else self._pool.choose(now_s, self._desk.key(row))
        if receiver is None:
            sender.num_outgoing -= 1
            self._drained(sender, now_s)
            self._desk.lose(row, now_s, f"{sender.name} failed" if sender.is_dead else f"no {self._pool.name} is up")
            return
        num_tokens = self._desk.num_known_tokens(row) - 1  # the KV of the token that came last is not computed yet
        move = self._moves[row] = _Move(row=row, sender=sender, receiver=receiver, num_tokens=num_tokens)
        receiver.incoming.add(row)
        self._calendar.add(self.link.send(sender, num_tokens, now_s), partial(self._arrive, move))

    def _arrive(self, move: _Move, now_s: float) -> None:
        if self._moves.get(move.row) is not move:
            return  # lost on the way
        self._end(move)
        self._desk.send(move.row, move.receiver, now_s, num_computed=move.num_tokens)
        self._drained(move.sender, now_s)

    def _end(self, move: _Move) -> None:
        del self._moves[move.row]
        move.sender.num_outgoing -= 1
        move.receiver.incoming.remove(move.row)
