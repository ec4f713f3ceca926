from __future__ import annotations

import pytest

from workbench.workload.randomness import content_stream, stream


def test_streams_give_the_same_draws_in_every_process() -> None:
    """Pinned: stored studies and journals are continued with these draws."""
    assert stream(7, "prompt", "all", 0).integers(0, 1000, 4).tolist() == [128, 163, 692, 195]
    assert content_stream(7, "prompt", "all", 0).integers(0, 1000, 4).tolist() == [549, 9, 894, 869]


@pytest.mark.parametrize("make", [stream, content_stream])
def test_streams_of_another_seed_name_or_kind_of_name_differ(make: type[object]) -> None:
    names: list[tuple[object, ...]] = [(7, "a", 1), (8, "a", 1), (7, "b", 1), (7, "a", 2), (7, "a", "1"), (7, "a")]
    firsts = {make(*each).integers(0, 2**62) for each in names}  # type: ignore[attr-defined]
    assert len(firsts) == len(names)


def test_content_streams_that_differ_by_one_are_unrelated() -> None:
    """Their seeds are not mixed again: uniform draws of many streams must be uniform across the streams too."""
    draws = sorted(content_stream(0, "prompt", i).random() for i in range(2000))
    furthest = max(abs(draw - (i + 0.5) / 2000) for i, draw in enumerate(draws))
    assert furthest < 0.043  # Kolmogorov-Smirnov at 0.1 %
