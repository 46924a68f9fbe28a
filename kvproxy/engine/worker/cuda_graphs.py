"""Captured steps: on CUDA, one graph launch replays a whole forward pass.

Each row of a captured step is one token. Rows may belong to the same sequence, because each layer writes all keys and
values before it reads any. A step is padded to the next capture size with rows that read and write only block 0.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

from kvproxy.engine.attention.interface import DecodeBackend
from kvproxy.engine.attention.paged_attention import AttentionMetadata, InputBatch, pad_block_tables
from kvproxy.engine.models.layer_groups import LayerGroup, group_slot_by_layer
from kvproxy.engine.scheduler.scheduler_output import TokenSpan
from kvproxy.engine.step_errors import first_line
from kvproxy.engine.worker.host_device_copies import to_host_tensor
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.settings import EngineSettings

Step = Callable[[], torch.Tensor]
StepCapture = Callable[[Step], Step]  # captures a step, and returns a function that replays it


def no_capture(step: Step) -> Step:
    return step


class CannotCapture(Exception):
    """The forward pass synchronizes with the device, which a CUDA graph cannot contain."""


class CudaCapture:
    """A `StepCapture` by CUDA graphs with a common memory pool. A replay overwrites the result of any other replay.

    Capture the largest step first. `device` must be the current CUDA device during capture.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            step()
            with _forbid_synchronization():
                step()
            # Other threads, such as FAISS, may allocate on the device during the capture.
            with torch.cuda.graph(graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"):
                output = step()
        torch.cuda.current_stream().wait_stream(self._stream)

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay


@contextmanager
def _forbid_synchronization() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        raise CannotCapture(first_line(error)) from None
    finally:
        torch.cuda.set_sync_debug_mode(before)


def capture_sizes(max_rows: int) -> tuple[int, ...]:
    """Return the numbers of rows for which steps are captured, as in vLLM."""
    sizes = (1, 2, 4, 8, *range(16, 128, 16), *range(128, max_rows, 64))
    return (*(size for size in sizes if size < max_rows), max_rows)


def max_captured_rows(settings: EngineSettings) -> int:
    num_drafts = 0 if settings.batch_invariant else settings.num_speculative_tokens
    return min(settings.max_num_seqs * (1 + num_drafts), settings.max_num_batched_tokens)


class CapturedSteps:
    """A captured step for each capture size. A call returns the logits of spans of one token each, `[rows, vocabulary]`."""

    def __init__(
        self,
        forward: Callable[[InputBatch], torch.Tensor],
        pool: KVPool,
        groups: Sequence[LayerGroup],
        decode: DecodeBackend,
        *,
        max_rows: int,
        max_blocks: int,
        capture: StepCapture,
    ) -> None:
        self._forward = forward
        self._pool = pool
        self._groups = groups
        self._decode = decode
        self._sizes = capture_sizes(max_rows)
        device = pool.data.device
        self._tables = torch.zeros((len(groups), max_rows, max_blocks), dtype=torch.int32, device=device)
        self._rows = {size: to_host_tensor(self._padding_rows(size), device).to(device) for size in self._sizes}
        self._steps = {size: capture(partial(self._compute_logits, size)) for size in reversed(self._sizes)}

    def fits(self, spans: Sequence[TokenSpan]) -> bool:
        return 0 < len(spans) <= self._sizes[-1]

    def __call__(self, spans: Sequence[TokenSpan]) -> torch.Tensor:
        size = next(size for size in self._sizes if size >= len(spans))
        device, block_size = self._pool.data.device, self._pool.block_size
        rows = self._padding_rows(size)
        rows[:, : len(spans)] = np.array([self._captured_row_inputs(span, block_size) for span in spans]).T
        self._rows[size].copy_(to_host_tensor(rows, device), non_blocking=True)
        width = max(-(-span.end // block_size) for span in spans)
        padding = [()] * (size - len(spans))
        for group, target in zip(self._groups, self._tables, strict=True):
            table = pad_block_tables([*(span.block_tables[group.index] for span in spans), *padding], width)
            target[:size, :width].copy_(to_host_tensor(table, device, np.int32), non_blocking=True)
        return self._steps[size]()[: len(spans)]

    def _captured_row_inputs(self, span: TokenSpan, block_size: int) -> list[int]:
        slots = [span.slot_mapping(block_size, group.index)[0] for group in self._groups]
        return [span.tokens[0], span.start, span.end, *slots]

    def _padding_rows(self, size: int) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
        rows = np.zeros((3 + len(self._groups), size), np.int64)
        rows[2] = 1
        return rows

    def _compute_logits(self, size: int) -> torch.Tensor:
        tokens, positions, lengths, *slot_mappings = self._rows[size]
        metadata = [
            AttentionMetadata(slot_mapping, None, self._decode.prepare(table[:size], lengths, self._pool, group))
            for group, slot_mapping, table in zip(self._groups, slot_mappings, self._tables, strict=True)
        ]
        slots = group_slot_by_layer(self._groups)
        return self._forward(InputBatch(self._pool, slots, tokens[None], positions[None], 0, metadata))
