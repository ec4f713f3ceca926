"""The kinds of requests in a mix."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from workbench.scenario.arrivals import AllAtOnce, OpenArrivalSpec, RequestFile
from workbench.scenario.base import Count, DurationOrZero, Integer, NonNegative, Spec, problem
from workbench.scenario.lengths import LengthSpec
from workbench.scenario.slo import Slo

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\s/\\:][^/\\:\n]*$")]


class SharedPrefix(Spec):
    """Tokens in front of the prompt that several requests have in common (a system prompt)."""

    tokens: Count
    """Length, in addition to the class's `input_tokens`."""
    groups: Count = 1
    """Different prefixes; each request draws one."""
    zipf_exponent: NonNegative = 0.0
    """Popularity of group k is proportional to (k + 1) ** -exponent; 0 = all alike."""
    position: Literal["front", "behind_header"] = "front"
    """`behind_header`: a few tokens of the request's own come first (a date, a name, an id). A prefix cache compares
    from the first token on, so nothing is shared then."""
    header_tokens: Count = 16
    """Length of that header, in addition to `tokens`."""

    @property
    def num_header_tokens(self) -> int:
        """0 where the prefix is in front."""
        return self.header_tokens if self.position == "behind_header" else 0


class Conversation(Spec):
    """Several turns: each prompt is the whole conversation so far and the new tokens of the user.

    The next turn is sent when the previous answer is complete and the user has thought. Only its user's own tokens and
    the answer's length are known before; the answer in the history is made up, so its blocks are never hit.
    """

    turns: LengthSpec | None = None
    """Number of turns; null only with a file, whose conversations have their own."""
    think_time: DurationOrZero = 0.0
    """From the end of an answer to the next turn."""


class ClassFile(RequestFile):
    """Requests of a class from a file: input and output lengths stay together, and so do real prompts."""

    order: Literal["file", "random"] = "file"
    """`file`: row after row, from the beginning again at its end; `random`: drawn with replacement."""


class RequestClass(Spec):
    """One kind of request in the mix."""

    name: Name
    weight: NonNegative | None = None
    """Share of the requests, relative to the other classes' weights."""
    count: Count | None = None
    """Number of requests, instead of weights and `num_requests`."""
    input_tokens: LengthSpec | None = None
    """Of each turn, without shared prefix and history."""
    output_tokens: LengthSpec | None = None
    file: ClassFile | None = None
    """Instead of input_tokens and output_tokens."""
    arrivals: OpenArrivalSpec | None = None
    """The class's own process, instead of a share of the common one; needs `count`, `workload.duration` or a process
    that ends."""
    conversation: Conversation | None = None
    """Each arrival begins a conversation of several requests."""
    slo: Slo | None = None
    """Replaces the scenario's SLO for this class."""
    priority: Integer = 0
    """Lower is more urgent; used by `scheduling_policy: priority`."""
    shared_prefix: SharedPrefix | None = None

    @model_validator(mode="after")
    def _check(self) -> RequestClass:
        if self.file is None:
            for key in ("input_tokens", "output_tokens"):
                if getattr(self, key) is None:
                    raise problem(key, "is missing")
        elif self.input_tokens is not None or self.output_tokens is not None or self.shared_prefix is not None:
            raise problem("file", "excludes input_tokens, output_tokens and shared_prefix: the file has them")
        if self.conversation is not None and (self.conversation.turns is None) == (self.file is None):
            raise problem("conversation.turns", "is missing, or is there although the file has its own turns")
        if self.arrivals is not None and self.weight is not None:
            raise problem("weight", "excludes arrivals: a share is of the common process")
        if isinstance(self.arrivals, AllAtOnce) and self.count is None:
            raise problem("count", "is missing: arrivals all_at_once does not end by itself")
        return self

    @property
    def prefix_tokens(self) -> int:
        """Tokens in front of the class's own: shared prefix and header."""
        if self.shared_prefix is None:
            return 0
        return self.shared_prefix.tokens + self.shared_prefix.num_header_tokens
