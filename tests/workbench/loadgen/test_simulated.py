"""The server in front of the simulated engine, turn by turn."""

from __future__ import annotations

from engine.clock import VirtualClock
from engine.request import Request
from engine.sampling_params import SamplingParams
from workbench.loadgen.simulated import FrontEnd


class EngineDoor:
    """Notes when each request comes in; never has work of its own."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.entered_s: dict[str, float] = {}

    def check_request(self, request: Request) -> None:
        pass

    def add_request(self, request: Request) -> None:
        self.entered_s[request.request_id] = round(self.clock.now(), 9)

    def has_unfinished(self) -> bool:
        return False

    def abort(self, request_id: str) -> None:
        pass

    def step(self, until_s: float) -> list[object]:
        return []


def entries(arrivals_s: list[float], *, request_s: float, delay_s: float = 0.0) -> list[float]:
    clock = VirtualClock()
    start_s = clock.now()
    door = EngineDoor(clock)
    front = FrontEnd(door, clock, request_s, delay_s)  # type: ignore[arg-type]
    for i, arrival_s in enumerate(arrivals_s):
        request = Request(f"r{i}", [1], SamplingParams(max_tokens=1), arrival_time_s=start_s + arrival_s)
        front.add_request(request)
    while front.has_unfinished():
        front.step()
    return [round(door.entered_s[f"r{i}"] - start_s, 9) for i in range(len(arrivals_s))]


def test_front_end_request_alone_takes_its_time_and_the_delay() -> None:
    assert entries([0.0], request_s=0.5) == [0.5]
    assert entries([0.0, 2.0], request_s=0.5, delay_s=0.25) == [0.75, 2.75]


def test_front_end_burst_enters_after_all_were_taken_in() -> None:
    """Four first turns of 0.9 s, then four second ones of 0.1 s."""
    assert entries([0.0] * 4, request_s=1.0) == [3.7, 3.8, 3.9, 4.0]


def test_front_end_later_request_waits_for_turns_that_waited_longer() -> None:
    """0: turns end at 0.9 and 1.9; 1, which came at 0.5, at 1.8 and 2.0."""
    assert entries([0.0, 0.5], request_s=1.0) == [1.9, 2.0]
    assert entries([0.0, 0.95], request_s=1.0) == [1.0, 2.0]


def test_front_end_delay_lets_requests_pass_side_by_side() -> None:
    assert entries([0.0, 0.0], request_s=0.0, delay_s=0.5) == [0.5, 0.5]


def test_front_end_forgets_what_is_aborted() -> None:
    clock = VirtualClock()
    door = EngineDoor(clock)
    front = FrontEnd(door, clock, 0.5)  # type: ignore[arg-type]
    front.add_request(Request("a", [1], SamplingParams(max_tokens=1), arrival_time_s=clock.now()))
    front.abort("a")
    assert not front.has_unfinished()
