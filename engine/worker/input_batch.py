"""From a scheduler's plan to the arrays of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.attention.base import AttentionBatch, Int64Array
from engine.outputs import SchedulerOutput
from engine.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBatch:
    """One step's tokens, sequence after sequence, those with one token first."""

    token_ids: Int64Array
    """[num_tokens]"""
    positions: Int64Array
    """[num_tokens]"""
    attention: AttentionBatch
    sampling_requests: Sequence[Request]
    """Those whose known tokens are all computed after this step, in the order of `sampling_rows`."""
    sampling_rows: Int64Array
    """[num_sampling]: row of each one's last token."""
    sampling_positions: Int64Array
    """[num_sampling]: position that each new token will have in its sequence."""


class InputBatchBuilder:
    """Builds batches and keeps each running request's block table and last token between steps.

    A request's table is copied only from the first block that this step writes to: everything before it is full and
    cannot change while the request runs. A request that comes back at another position than it left (preempted,
    resumed) or is reported as preempted is read afresh.
    """

    def __init__(self, *, block_size: int, max_model_len: int, max_num_seqs: int) -> None:
        self._block_size = block_size
        self._tables = np.zeros((max_num_seqs, -(-max_model_len // block_size)), dtype=np.int32)
        self._next_positions = [0] * max_num_seqs  # where each row's request is expected to go on
        self._last_tokens = [0] * max_num_seqs
        self._row_of: dict[str, int] = {}
        self._free_rows = list(range(max_num_seqs - 1, -1, -1))

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drop what is kept for finished or preempted requests; unknown ids are ignored."""
        for request_id in request_ids:
            row = self._row_of.pop(request_id, None)
            if row is not None:
                self._free_rows.append(row)

    def record_sampled(self, sampled: dict[str, int]) -> None:
        """Remember the newest tokens: with asynchronous scheduling the next plan is made before they are known."""
        for request_id, token_id in sampled.items():
            self._last_tokens[self._row_of[request_id]] = token_id

    def build(self, plan: SchedulerOutput) -> InputBatch:
        """The arrays for a plan with at least one scheduled request."""
        counts = np.array(plan.num_new_tokens, dtype=np.int64)
        computed = np.array(plan.num_computed_tokens, dtype=np.int64)
        requests, unsampled = plan.requests, plan.unsampled
        num_seqs, num_decodes = len(counts), int(np.count_nonzero(counts == 1))
        if num_decodes < num_seqs:
            order = np.argsort(counts != 1, kind="stable")  # one token first, else in the scheduler's order
            counts, computed = counts[order], computed[order]
            requests = [requests[i] for i in order]
            unsampled = {new for new, old in enumerate(order.tolist()) if old in plan.unsampled}
        rows, token_ids = self._rows_and_tokens(requests, computed.tolist(), counts.tolist())
        starts = np.zeros(num_seqs + 1, dtype=np.int64)
        np.cumsum(counts, out=starts[1:])
        if num_decodes == num_seqs:
            positions, token_rows = computed, rows
        else:
            positions = np.arange(starts[-1]) + np.repeat(computed - starts[:-1], counts)
            token_rows = np.repeat(rows, counts)
        seq_lens = computed + counts
        num_blocks = -(-int(seq_lens.max()) // self._block_size)
        blocks = self._tables[token_rows, positions // self._block_size].astype(np.int64)
        sampling = [i for i in range(num_seqs) if i not in unsampled] if unsampled else slice(None)
        return InputBatch(
            token_ids=np.array(token_ids, dtype=np.int64),
            positions=positions,
            attention=AttentionBatch(
                num_decodes=num_decodes,
                query_starts=starts.astype(np.int32),
                seq_lens=seq_lens.astype(np.int32),
                block_tables=self._tables[rows, :num_blocks],
                slot_mapping=blocks * self._block_size + positions % self._block_size,
            ),
            sampling_requests=requests if isinstance(sampling, slice) else [requests[i] for i in sampling],
            sampling_rows=starts[1:][sampling] - 1,
            sampling_positions=seq_lens[sampling],
        )

    def _rows_and_tokens(
        self, requests: Sequence[Request], computed: list[int], counts: list[int]
    ) -> tuple[Int64Array, list[int]]:
        """Each request's row, its table brought up to date, and the tokens of all of them."""
        rows: list[int] = []
        token_ids: list[int] = []
        for request, start, count in zip(requests, computed, counts, strict=True):
            row = self._update_row(request, start, start + count)
            rows.append(row)
            known = request.all_token_ids
            if count == 1:
                token_ids.append(known[start] if start < len(known) else self._last_tokens[row])
            else:
                token_ids += known[start : start + count]
        return np.array(rows, dtype=np.int64), token_ids

    def _update_row(self, request: Request, start: int, end: int) -> int:
        """The request's row; its table covers positions up to `end` and is right from the block of `start` on."""
        row = self._row_of.get(request.request_id)
        first = 0
        if row is None:
            row = self._row_of[request.request_id] = self._take_row()
        elif self._next_positions[row] == start:
            first = start // self._block_size
        self._next_positions[row] = end
        last = -(-end // self._block_size)
        if last - first == 1:  # the usual decode
            self._tables[row, first] = request.block_ids[first]
        else:
            self._tables[row, first:last] = request.block_ids[first:last]
        return row

    def _take_row(self) -> int:
        if not self._free_rows:  # more requests are alive than run at once: swapped out, or not yet reported finished
            num_rows = len(self._tables)
            self._tables = np.concatenate((self._tables, np.zeros_like(self._tables)))
            self._next_positions += [0] * num_rows
            self._last_tokens += [0] * num_rows
            self._free_rows = list(range(2 * num_rows - 1, num_rows - 1, -1))
        return self._free_rows.pop()
