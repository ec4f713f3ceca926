"""What is said about the rates between the two ends of a bracket."""

from __future__ import annotations

from typing import Any

import pytest

from workbench.report.rate_words import gap_in_words


def bracket(
    passed: float | None, failed: float | None, *probes: tuple[float, str], coarse: bool = False
) -> dict[str, Any]:
    return {
        "passed": passed,
        "failed": failed,
        "is_coarse": coarse,
        "probes": [{"rate_per_s": rate, "proof": proof} for rate, proof in probes],
    }


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (bracket(10.0, 10.2, (10.0, "holds"), (10.2, "broken")), "nothing: neighbouring rates"),
        (
            bracket(10.0, 12.0, (10.0, "holds"), (11.0, "unresolved"), (11.0, "unresolved"), (12.0, "broken")),
            "unresolved at 11.0 req/s",
        ),
        (bracket(10.0, 12.0, (11.0, "unresolved"), (11.0, "broken"), (9.0, "unresolved")), "not tried"),
        (bracket(8.0, 12.0, coarse=True), "not tried: it could not beat the best so far (coarse)"),
        (bracket(10.0, None, (10.0, "holds")), "no rate was shown not to hold"),
        (bracket(None, 2.0, (2.0, "broken")), "no lower rate was shown to hold"),
        ({}, "no rate was shown not to hold"),
    ],
)
def test_gap_between_the_ends_of_a_bracket_in_words(rate: dict[str, Any], words: str) -> None:
    assert gap_in_words(rate) == words
