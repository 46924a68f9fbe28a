"""Steps of single rows, made ready once and replayed: on CUDA, a whole forward pass is one launch of a graph.

A row is one token of a sequence, which sees everything up to itself. Keys and values are written before any row reads them,
so several tokens of one sequence can be rows of one step: guesses, and short ends of prompts.

A step is padded to the next of a few sizes. Its inputs are copied into tensors that stay where they are; padding rows
read and write block 0, where nothing is kept.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import numpy as np
import torch

from kvproxy.engine.attention.interface import DecodeBackend
from kvproxy.engine.health import describe
from kvproxy.engine.models.layer_groups import LayerGroup
from kvproxy.engine.scheduler.token_span import TokenSpan
from kvproxy.engine.worker.input_batch import AttentionMetadata, InputBatch, padded_block_table
from kvproxy.engine.worker.kv_pool import KVPool
from kvproxy.engine.worker.transfer import to_host_tensor
from kvproxy.settings import EngineSettings

Step = Callable[[], torch.Tensor]
"""Computes the logits of a step from inputs that lie in fixed places."""


class StepCapture(Protocol):
    """Makes a step ready to be run many times."""

    def __call__(self, step: Step) -> Step:
        """The same step; it may return the same tensor each time, overwritten."""


def no_capture(step: Step) -> Step:
    """The capture of devices that have no graphs: the step itself."""
    return step


class CannotCapture(Exception):
    """The model's forward pass waits for the device, so it cannot be replayed without the host."""


class CudaCapture:
    """Captures CUDA graphs that share one pool of memory; capture the largest first.

    Args:
        device: a CUDA device, the current one whenever a step is captured.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """A step that launches a graph.

        Raises:
            CannotCapture: it waits for the device.
        """
        graph = torch.cuda.CUDAGraph()
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            # What happens only once must happen before: kernels are compiled, libraries allocate their workspaces.
            step()
            with _no_waiting():
                step()
            # Other threads may allocate on the device meanwhile (FAISS does); it is not theirs that are captured.
            with torch.cuda.graph(graph, pool=self._memory, stream=self._stream, capture_error_mode="thread_local"):
                output = step()
        torch.cuda.current_stream().wait_stream(self._stream)

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Find out what waits for the device, for a capture that fails leaves torch's allocator in no state to go on."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        raise CannotCapture(describe(error)) from None
    finally:
        torch.cuda.set_sync_debug_mode(before)


def capture_sizes(most: int) -> tuple[int, ...]:
    """Rows that steps are padded to: 1, 2, 4, 8, every 16 up to 128, every 64 from there, and `most`."""
    return (*(size for size in (1, 2, 4, 8, *range(16, 128, 16), *range(128, most, 64)) if size < most), most)


def max_captured_rows(settings: EngineSettings) -> int:
    """Rows of the largest step that is made ready: a token of each sequence, and its guesses."""
    # In strict mode there are none.
    guesses = 0 if settings.strict else settings.speculate
    return min(settings.max_sequences * (1 + guesses), settings.max_batch_tokens)


class CapturedSteps:
    """Ready-made steps for every size.

    Args:
        forward: the model's logits for a step, `[rows, vocabulary]`.
        pool: the KV tensors.
        groups: the model's groups of layers.
        decode: the attention.
        most: most rows of a step.
        width: blocks of the longest sequence.
        capture: makes a step ready.

    Raises:
        CannotCapture: the model's steps cannot be.
    """

    def __init__(
        self,
        forward: Callable[[InputBatch], torch.Tensor],
        pool: KVPool,
        groups: Sequence[LayerGroup],
        decode: DecodeBackend,
        *,
        most: int,
        width: int,
        capture: StepCapture,
    ) -> None:
        self._forward = forward
        self._pool = pool
        self._groups = groups
        self._decode = decode
        self._sizes = capture_sizes(most)
        self._width = width
        device = pool.data.device
        self._tables = torch.zeros((len(groups), most, width), dtype=torch.int32, device=device)
        self._rows = {size: to_host_tensor(self._idle_rows(size), device).to(device) for size in self._sizes}
        self._steps = {size: capture(partial(self._compute, size)) for size in reversed(self._sizes)}

    def fits(self, spans: Sequence[TokenSpan]) -> bool:
        """Whether a step of these decoding rows was made ready."""
        return 0 < len(spans) <= self._sizes[-1]

    def __call__(self, spans: Sequence[TokenSpan]) -> torch.Tensor:
        """Logits of decoding rows, `[rows, vocabulary]`; they last until the next call."""
        size = next(size for size in self._sizes if size >= len(spans))
        self._load(spans, size)
        return self._steps[size]()[: len(spans)]

    def _load(self, spans: Sequence[TokenSpan], size: int) -> None:
        device, block_size = self._pool.data.device, self._pool.block_size
        rows = self._idle_rows(size)
        rows[:, : len(spans)] = np.array([self._row(span, block_size) for span in spans]).T
        self._rows[size].copy_(to_host_tensor(rows, device), non_blocking=True)
        width = max(-(-span.end // block_size) for span in spans)
        idle = [()] * (size - len(spans))
        for group, own in zip(self._groups, self._tables, strict=True):
            table = padded_block_table([*(span.tables[group.number] for span in spans), *idle], width)
            own[:size, :width].copy_(to_host_tensor(table, device, np.int32), non_blocking=True)

    def _row(self, span: TokenSpan, block_size: int) -> list[int]:
        """Token, position and length of a row, and its slot in each group."""
        slots = [span.slots(block_size, group.number)[0] for group in self._groups]
        return [span.tokens[0], span.start, span.end, *slots]

    def _idle_rows(self, size: int) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
        """Rows that pad a step: they see one key, in block 0."""
        rows = np.zeros((3 + len(self._groups), size), np.int64)
        rows[2] = 1
        return rows

    def _compute(self, size: int) -> torch.Tensor:
        tokens, positions, lengths, *slots = self._rows[size]
        batches = [
            AttentionMetadata(own, None, self._decode.prepare(table[:size], lengths, self._pool, group))
            for group, own, table in zip(self._groups, slots, self._tables, strict=True)
        ]
        return self._forward(InputBatch(self._pool, self._groups, tokens[None], positions[None], 0, batches))
