"""The asyncio facade: tokens arrive in order, and whatever ends a request ends its stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine.async_llm import AsyncLLM, EngineStopped, TokenNews, TokenStream
from engine.build import build_engine, build_scheduler
from engine.config import EngineConfig
from engine.engine_core import EngineCore
from engine.errors import OutOfMemory, RequestRefused
from engine.outputs import SchedulerOutput
from engine.request import Request
from engine.sampling_params import SamplingParams

DEADLINE_S = 20.0
MakeCore = Callable[..., EngineCore]


@pytest.fixture(scope="module")
def built() -> Iterator[tuple[EngineCore, Any]]:
    core, resolved = build_engine(EngineConfig.from_dict({"model": "tiny", "num_blocks": 65, "max_model_len": 256}))
    yield core, resolved
    core.close()


class SharedExecutor:
    """The module's executor, which no single engine may close; breaks at a chosen step."""

    def __init__(self, executor: Any, breaks_at_step: int | None) -> None:
        self.executor, self.breaks_at_step, self.num_steps = executor, breaks_at_step, 0

    def execute(self, plan: SchedulerOutput) -> Any:
        if self.num_steps == self.breaks_at_step:
            raise OutOfMemory("no room for this step")
        self.num_steps += 1
        return self.executor.execute(plan)

    def close(self) -> None:
        pass


@pytest.fixture
def make_core(built: tuple[EngineCore, Any]) -> MakeCore:
    def make(*, breaks_at_step: int | None = None) -> EngineCore:
        core, resolved = built
        return EngineCore(build_scheduler(resolved), SharedExecutor(core.executor, breaks_at_step), core.clock)  # type: ignore[arg-type]

    return make


def make_request(name: str, *, max_tokens: int = 5, n: int = 1, num_prompt_tokens: int = 9) -> Request:
    prompt = [(len(name) * 31 + i * 7) % 256 for i in range(num_prompt_tokens)]
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True, n=n))


async def collect(stream: TokenStream) -> list[TokenNews]:
    return [token async for news in stream for token in news]


def run(scenario: Any) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, DEADLINE_S))


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_stream_tokens_equal_the_synchronous_core(make_core: MakeCore) -> None:
    core = make_core()
    core.add_request(make_request("a", max_tokens=8))
    expected: list[int] = []
    while core.has_unfinished():
        expected += [token for output in core.step() for token in output.new_token_ids]

    async def scenario() -> list[TokenNews]:
        async with AsyncLLM(make_core()) as llm:
            return await collect(llm.submit([make_request("a", max_tokens=8)]))

    news = run(scenario())
    assert [token.token_id for token in news] == expected
    assert [token.finish_reason for token in news] == [None] * 7 + ["length"]


def test_stream_of_two_prompts_with_samples_numbers_its_choices(make_core: MakeCore) -> None:
    async def scenario() -> tuple[list[TokenNews], TokenStream, AsyncLLM]:
        async with AsyncLLM(make_core()) as llm:
            stream = llm.submit([make_request("a", n=2), make_request("bb", n=2)])
            news = await collect(stream)
            await until(lambda: not llm.core.parallel_sampling._siblings)  # nothing is remembered for ever
            return news, stream, llm

    news, stream, llm = run(scenario())
    assert [sum(token.choice == choice for token in news) for choice in range(4)] == [5, 5, 5, 5]
    assert (stream.num_output_tokens, llm.num_generation_tokens, llm.num_prompt_tokens) == (20, 20, 18)
    assert stream.is_complete


def test_submit_impossible_request_refuses_and_drops_its_companions(make_core: MakeCore) -> None:
    async def scenario() -> AsyncLLM:
        async with AsyncLLM(make_core()) as llm:
            with pytest.raises(RequestRefused, match="300 tokens, but max_model_len is 256"):
                await collect(llm.submit([make_request("a"), make_request("long", num_prompt_tokens=300)]))
            assert len(await collect(llm.submit([make_request("next")]))) == 5
            return llm

    assert run(scenario()).core.scheduler.num_unfinished == 0


def test_abort_ends_the_stream_and_frees_the_blocks(make_core: MakeCore) -> None:
    async def scenario() -> int:
        async with AsyncLLM(make_core()) as llm:
            stream = llm.submit([make_request("a", max_tokens=200)])
            await anext(stream)
            llm.abort(stream)
            await collect(stream)
            assert stream.is_done
            assert not stream.is_complete
            await until(lambda: not llm.core.scheduler.has_requests())
            return llm.core.scheduler.blocks.pool.num_in_use

    assert run(scenario()) == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_engine_failure_fails_open_and_later_requests(make_core: MakeCore, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> EngineStopped | None:
        async with AsyncLLM(make_core(breaks_at_step=3)) as llm:
            streams = [llm.submit([make_request(name, max_tokens=50)]) for name in ("a", "bb")]
            for stream in streams:
                with pytest.raises(EngineStopped, match="OutOfMemory: no room for this step"):
                    await collect(stream)
            with pytest.raises(EngineStopped):
                llm.submit([make_request("later")])
            return llm.failure

    failure = run(scenario())
    assert failure is not None
    assert isinstance(failure.__cause__, OutOfMemory)
    assert "the engine broke" in caplog.text


def test_stop_fails_open_requests(make_core: MakeCore) -> None:
    async def scenario() -> None:
        async with AsyncLLM(make_core()) as llm:
            stream = llm.submit([make_request("a", max_tokens=200)])
            await anext(stream)
        with pytest.raises(EngineStopped, match="shut down"):
            await collect(stream)

    run(scenario())
