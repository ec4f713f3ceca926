"""KV caches on their way from prefill to decode replicas."""

from __future__ import annotations

from workbench.loadgen.fleet.replica import Replica
from workbench.scenario.fleet import Link as LinkSpec


class Link:
    """Each sender sends one cache at a time, in the order in which the prompts were done; senders do not share."""

    def __init__(self, spec: LinkSpec, bytes_per_token: int) -> None:
        self._bytes_per_s, self._latency_s = spec.bandwidth_gb_per_s * 1e9, spec.latency_us * 1e-6
        self._bytes_per_token = bytes_per_token
        self.num_transfers = self.num_bytes = 0
        self.waited_s = self.sent_s = 0.0

    def send(self, sender: Replica, num_tokens: int, now_s: float) -> float:
        """When the KV of so many tokens, ready now, will be there."""
        num_bytes = num_tokens * self._bytes_per_token
        begin_s = max(now_s, sender.link_free_s)
        sender.link_free_s = begin_s + num_bytes / self._bytes_per_s
        self.num_transfers += 1
        self.num_bytes += num_bytes
        self.waited_s += begin_s - now_s
        self.sent_s += num_bytes / self._bytes_per_s
        return sender.link_free_s + self._latency_s
