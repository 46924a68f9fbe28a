"""Hits of LRU pools of all sizes, computed in one pass (stack distances; Mattson et al., 1970).

The stack orders the blocks of all prompts by their last use, the latest at the top. A prompt's first block is above its
last block, because a request frees its last block first. If requests run one at a time, an LRU pool of n blocks contains
the top n blocks.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence
from itertools import accumulate
from typing import NamedTuple

_LEAST_SEGMENTS = 1 << 10
_GRID = [2 ** (step / 16) for step in range(160, 704)]  # pool sizes from 2^10 to 2^44 units
_MAX_LIVE_IDS = 50_000


class ReusedRun(NamedTuple):
    """Consecutive units (blocks or bytes) of a prompt that had their last use in the same earlier request.

    Attributes:
        start, stop: range in the prompt.
        distance: number of units in the stack above the run's first unit. Larger pools still contain this unit.
    """

    start: int
    stop: int
    distance: int


class LRUStack:
    """The stack of all prompts, with a segment per request: its units (blocks or bytes) that no later request used.

    Args:
        max_ids: maximum number of parts of prompts in the stack; the least recently used ones are forgotten. None keeps all.
    """

    def __init__(self, max_ids: int | None = None) -> None:
        self.num_units = 0
        self._max_ids = max_ids
        self._segments: dict[Hashable, int] = {}
        self._sizes = [0] * (_LEAST_SEGMENTS + 1)
        self._tree = list(self._sizes)  # a Fenwick tree of the sizes
        self._newest = 0

    def add(self, ids: Sequence[Hashable], ends: Sequence[int] | None = None) -> list[ReusedRun]:
        """Move a prompt to the top, and return the runs of its leading units that were in the stack.

        Args:
            ids: a hash for each part of the prompt, which also covers all previous parts, like a block hash.
            ends: end of each part in units; by default each part is one unit.
        """
        if self._newest == len(self._sizes) - 1 or (self._max_ids and len(self._segments) > self._max_ids):
            self._compact()
        runs: list[ReusedRun] = []
        index = start = 0
        while index < len(ids) and (segment := self._segments.get(ids[index])) is not None:
            index = self._end_of_run(ids, index, segment)
            stop = index if ends is None else ends[index - 1]
            # The units before `start` were above this run, and have left the tree.
            runs.append(ReusedRun(start, stop, start + self.num_units - self._units_up_to(segment)))
            self._resize(segment, start - stop)
            start = stop
        if ids:
            self._newest += 1
            self._resize(self._newest, len(ids) if ends is None else ends[-1])
            self._segments.update(dict.fromkeys(ids, self._newest))
        return runs

    def _end_of_run(self, ids: Sequence[Hashable], index: int, segment: int) -> int:
        segment_of = self._segments.get
        if segment_of(ids[-1]) == segment:
            return len(ids)
        return bisect_left(range(len(ids)), True, lo=index + 1, key=lambda place: segment_of(ids[place]) != segment)

    def _units_up_to(self, segment: int) -> int:
        total = 0
        while segment:
            total += self._tree[segment]
            segment &= segment - 1
        return total

    def _resize(self, segment: int, change: int) -> None:
        self.num_units += change
        self._sizes[segment] += change
        while segment < len(self._tree):
            self._tree[segment] += change
            segment += segment & -segment

    def _compact(self) -> None:
        cut = 0
        if self._max_ids is not None and len(self._segments) > self._max_ids:
            cut = sorted(self._segments.values())[len(self._segments) - self._max_ids // 2]
        kept = [segment for segment in range(cut, len(self._sizes)) if self._sizes[segment]]
        numbers = {segment: number for number, segment in enumerate(kept, 1)}
        self._segments = {id: numbers[segment] for id, segment in self._segments.items() if segment >= cut}
        sizes = [self._sizes[segment] for segment in kept]
        self._newest = len(kept)
        self._sizes = [0] * (1 + max(_LEAST_SEGMENTS, 2 * self._newest))
        self._tree = list(self._sizes)
        self.num_units = 0
        for number, size in enumerate(sizes, 1):
            self._resize(number, size)


class HitCurve:
    """Counts the block hits of LRU pools of all sizes.

    Attributes:
        min_blocks: number of blocks of the longest prompt. Smaller pools cannot compute it, so their hits are unknown.
    """

    def __init__(self) -> None:
        self.min_blocks = 1
        self._stack = LRUStack()
        self._changes: dict[int, int] = defaultdict(int)
        # A partial block leaves a free block after its request. A pool is full again after a miss, so this is true of the
        # pools above a size.
        self._largest_full = math.inf

    def add(self, blocks: Sequence[Hashable], max_hits: int, ends_partially: bool, min_hits: int = 0) -> None:
        """Add a prompt.

        Args:
            max_hits: maximum number of leading blocks that count as hits, because the last token is always computed.
            ends_partially: whether the prompt ends in an incomplete block, which is not cached.
            min_hits: fewer leading blocks than these count as none.
        """
        runs = self._stack.add(blocks)
        self.min_blocks = max(self.min_blocks, len(blocks) + ends_partially)
        num_reused = min(max_hits, runs[-1].stop if runs else 0)
        for run in runs if min_hits <= num_reused else ():
            # The leading blocks below the minimum are hits of the pools that contain all of them.
            at_once = min_hits if run.start < min_hits <= run.stop else 0
            start = max(run.start, min_hits)
            offset = run.distance + 1 - run.start
            self._count(start + offset, max(start, min(run.stop, max_hits)) + offset)
            for _ in range(at_once):
                self._count(min_hits - 1 + offset, min_hits + offset)
        if ends_partially:
            self._largest_full = 0
        elif blocks:
            is_known = bool(runs) and runs[-1].stop == len(blocks)
            last = runs[-1].distance + runs[-1].stop - runs[-1].start if is_known else math.inf
            self._largest_full = max(self._largest_full, last)

    def _count(self, first: int, stop: int) -> None:
        """Count a hit of the pools from each of these sizes on; a size above the largest full one is larger by a block."""
        middle = int(min(stop, max(first, self._largest_full + 1)))
        for begin, end in ((first, middle), (middle + 1, stop + 1)):
            self._changes[begin] += 1
            self._changes[end] -= 1

    def hits_by_pool_size(self) -> list[int]:
        """Return the hits of pools with 0, 1, 2, ... blocks. Larger pools have as many hits as the last one in the list."""
        first_hits = accumulate(self._changes.get(size, 0) for size in range(max(self._changes, default=0) + 1))
        return list(accumulate(first_hits))


class LiveHitCurve:
    """Hit rates of LRU pools of all sizes in bounded memory, interpolated between the sizes of a grid.

    Only whole blocks of `block_tokens` tokens are hits, and never the last token of a prompt.
    """

    def __init__(self, block_tokens: int = 16) -> None:
        self.block_tokens = block_tokens
        self.requests = self.tokens = self.units = self.max_prompt_tokens = 0
        self._stack = LRUStack(_MAX_LIVE_IDS)
        # Reused tokens of a size alone, and of a size and all larger ones.
        self._partial = [0] * (len(_GRID) + 1)
        self._whole = [0] * (len(_GRID) + 1)
        self._reused = self.reported_tokens = 0

    @property
    def measured_hit_rate(self) -> float | None:
        """Share of the prompt tokens that the engine reported as reused, 0 to 1; None without reports."""
        return self._reused / self.reported_tokens if self.reported_tokens else None

    def add(
        self, ids: Sequence[Hashable], ends: Sequence[int], prompt_tokens: int, reused_tokens: int | None = None
    ) -> None:
        """Add a prompt; see `LRUStack.add` for `ids` and `ends`.

        Args:
            reused_tokens: number of tokens that the engine reported as reused; None without a report.
        """
        if reused_tokens is not None:
            self._reused += reused_tokens
            self.reported_tokens += prompt_tokens
        self.requests += 1
        self.tokens += prompt_tokens
        self.units += ends[-1] if ends else 0
        self.max_prompt_tokens = max(self.max_prompt_tokens, prompt_tokens)
        block, partial, before = self.block_tokens, self._partial, 0
        blocks_per_unit = prompt_tokens / block / max(1, ends[-1]) if ends else 0.0
        max_blocks = max(0, prompt_tokens - 1) // block
        for run in self._stack.add(ids, ends):
            first, end = bisect_left(_GRID, run.distance), bisect_left(_GRID, run.distance + run.stop - run.start)
            for place in range(first, end):
                stop = run.start + _GRID[place] - run.distance
                partial[place] += block * min(max_blocks, int(stop * blocks_per_unit)) - before
            after = block * min(max_blocks, int(run.stop * blocks_per_unit))
            self._whole[end] += after - before
            before = after

    def hit_rate(self, pool_tokens: float) -> float:
        """Return the share of all prompt tokens that an LRU pool of `pool_tokens` tokens would reuse, 0 to 1."""
        size = pool_tokens * self.units / max(1, self.tokens)
        place = min(bisect_left(_GRID, size), len(_GRID) - 1)
        before = max(0, place - 1)
        low, high = (sum(self._whole[: at + 1]) + self._partial[at] for at in (before, place))
        share = (size - _GRID[before]) / (_GRID[place] - _GRID[before]) if place else 1.0
        return (low + (high - low) * min(1.0, max(0.0, share))) / max(1, self.tokens)
