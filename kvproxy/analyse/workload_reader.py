"""Reads the requests of traces, transcripts of agents, journals, and recorded KV events as one workload.

Transcripts and journals have regions of text (see `Regions`) instead of tokens; the tokens of a region are estimated from its
bytes. Two blocks are equal if the prompts are equal up to the end of the region that contains the block's end.
"""

import contextlib
import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean

import msgpack

from kvproxy.analyse.opencode import is_opencode_file
from kvproxy.analyse.simulate.pool_simulation import ChainRequest, TraceRequest
from kvproxy.analyse.simulate.trace_reader import (
    DEFAULT_BLOCK_SIZE,
    BlockNumbers,
    TraceError,
    Workload,
    read_text,
    read_trace,
)
from kvproxy.analyse.transcripts import is_transcript, read_transcripts
from kvproxy.journal.reader import JournalReader
from kvproxy.journal.request_regions import regions_of
from kvproxy.journal.sessions.session_matching import PromptChain, chain_of
from kvproxy.upstreams.mirror.event_decoder import GPU, EventBatch, EventDecodeError, Hash, StoredEvent, decode_batch

_SUFFIXES = (".jsonl", ".json", ".csv", ".gz", ".zst", ".db", ".msgpack")
_BYTES_PER_TOKEN = 4.0
_MAX_EVENT_GAP_SECONDS = 2.0
_TRANSCRIPT_NOTE = "transcripts lack the system prompt and the tools, and their tokens are estimated as 4 bytes each"
_JOURNAL_NOTE = "the journal has texts instead of tokens: equal beginnings of different messages count as new"
_EVENTS_NOTE = "KV events show stored blocks only: wholly cached requests are missing, so hits are too low"


def read_workload(*paths: Path, block_size: int | None = None, users: int | None = None) -> Workload:
    """Read files, and all files of folders, as one trace. Raises TraceError.

    Args:
        block_size: tokens in a block; by default, the size in the trace, or 16.
        users: number of simulated users, who each replay one file at a time; None for the recorded times.
    """
    ids, names = BlockNumbers(), ", ".join(map(str, paths))
    if len(paths) == 1 and not paths[0].is_dir():
        return _read_file(paths[0], block_size, ids)
    traces = [_read_file(file, block_size, ids) for path in paths for file in _files_of(path)]
    sizes = {trace.block_tokens for trace in traces}
    if len(sizes) > 1:
        raise TraceError(f"{names}, line 1: the files have blocks of {sorted(sizes)} tokens: simulate each size alone")
    if len(traces) > 1 and not all(trace.has_times for trace in traces):
        raise TraceError(f"{names}, line 1: a file has no times, which the order of several files requires")
    arrivals = _schedule_users(traces, users) if users else [arrival for trace in traces for arrival in trace.arrivals]
    notes = dict.fromkeys(note for trace in traces for note in trace.notes)
    arrivals = sorted(arrivals, key=lambda arrival: arrival.seconds)
    return Workload(arrivals, sizes.pop(), tuple(notes), all(trace.has_only_lengths for trace in traces))


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.name.endswith(_SUFFIXES) and file.is_file())
    if not files:
        raise TraceError(f"{path}, line 1: the folder has no file that ends in {', '.join(_SUFFIXES)}")
    return files


def _schedule_users(traces: Sequence[Workload], users: int) -> Iterator[TraceRequest]:
    free = [(0.0, user) for user in range(users)]
    for trace in traces:
        (start, user), first = heapq.heappop(free), trace.arrivals[0].seconds
        for arrival in trace.arrivals:
            yield replace(arrival, seconds=start + arrival.seconds - first, client=str(user))
        heapq.heappush(free, (start + trace.arrivals[-1].seconds - first, user))


def _read_file(path: Path, block_size: int | None, ids: BlockNumbers) -> Workload:
    head = read_text(path, 4096)
    if head.startswith("SQLite format 3") and not is_opencode_file(path, head):
        return _read_journal(path, block_size or DEFAULT_BLOCK_SIZE, ids)
    if path.suffix == ".msgpack":
        return _read_events(path, ids)
    if '"hash_ids"' not in head and path.is_file() and is_transcript(path):
        requests = read_transcripts([path]).requests
        if not requests:
            raise TraceError(f"{path}, line 1: the transcript has no request")
        regions = (regions_of({"endpoint": request.api.path, "body": request.body}) for request in requests)
        prompts = [
            _Prompt(request.time or 0.0, chain_of(own, "")) for request, own in zip(requests, regions, strict=True)
        ]
        return _workload_of_regions(prompts, block_size or DEFAULT_BLOCK_SIZE, ids, (_TRANSCRIPT_NOTE,))
    return read_trace(path, block_size, ids)


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt of regions; `tokens` is None if unknown."""

    seconds: float
    chain: PromptChain
    tokens: int | None = None
    output: int = 0
    session: int | None = None


def _workload_of_regions(
    prompts: Sequence[_Prompt], block_size: int, ids: BlockNumbers, notes: tuple[str, ...]
) -> Workload:
    lengths = [
        max(1, round(sum(prompt.chain.sizes) / _BYTES_PER_TOKEN)) if prompt.tokens is None else prompt.tokens
        for prompt in prompts
    ]
    ends = _prefix_ends([prompt.chain for prompt in prompts], lengths)
    scope = ids.new_scope()
    arrivals = []
    for prompt, length in zip(prompts, lengths, strict=True):
        blocks = ids.chain_numbers(_region_blocks(prompt.chain, ends, length, block_size), scope)
        reusable = min(len(blocks), max(0, length - 1) // block_size)
        chain = ChainRequest(blocks, reusable, partial=length % block_size > 0)
        arrivals.append(TraceRequest(prompt.seconds, chain, length, prompt.output, session=prompt.session))
    return Workload(arrivals, block_size, notes)


def _prefix_ends(chains: Sequence[PromptChain], prompt_tokens: Sequence[int]) -> dict[int, float]:
    """Return the estimated tokens of each prefix by its hash: the mean over the prompts that begin with it."""
    shares: dict[int, list[float]] = {}
    for chain, length in zip(chains, prompt_tokens, strict=True):
        rate = length / max(1, sum(chain.sizes))
        for prefix, size in zip(chain.prefixes, accumulate(chain.sizes), strict=True):
            shares.setdefault(prefix, []).append(rate * size)
    return {prefix: fmean(estimates) for prefix, estimates in shares.items()}


def _region_blocks(
    chain: PromptChain, ends: Mapping[int, float], length: int, block_size: int
) -> Iterator[tuple[int, int]]:
    """Yield the region and the place of each whole block; `length` is the number of tokens in the prompt."""
    place, num_blocks = 0, length // block_size
    for prefix in chain.prefixes:
        # The estimated end of the last region may differ from the length of the prompt.
        end = num_blocks * block_size if prefix == chain.prefixes[-1] else ends[prefix]
        while place < num_blocks and (place + 1) * block_size <= end:
            yield prefix, place
            place += 1


def _read_events(path: Path, ids: BlockNumbers) -> Workload:
    parents: dict[Hash, Hash | None] = {}
    prompts: list[tuple[float, Hash]] = []
    open_prompts: dict[Hash, tuple[int, float]] = {}
    sizes: set[int] = set()
    for seconds, event in _stored_events(path):
        sizes.add(event.block_size)
        before = event.parent
        for digest in event.hashes:
            parents.setdefault(digest, before)
            before = digest
        number, latest = open_prompts.pop(event.parent or b"", (len(prompts), seconds))
        if seconds - latest > _MAX_EVENT_GAP_SECONDS:
            number = len(prompts)
        start = prompts[number][0] if number < len(prompts) else seconds
        prompts[number : number + 1] = [(start, event.hashes[-1])]
        open_prompts[event.hashes[-1]] = (number, seconds)
    if len(sizes) != 1:
        raise TraceError(f"{path}, line 1: expected stored blocks of one size, not {sorted(sizes)}")
    size, scope = sizes.pop(), ids.new_scope()
    arrivals = []
    for seconds, last in prompts:
        path_up: list[Hash] = []
        at: Hash | None = last
        while at is not None:
            path_up.append(at)
            at = parents.get(at)
        blocks = ids.chain_numbers(reversed(path_up), scope)
        chain = ChainRequest(blocks, len(blocks), partial=False)
        arrivals.append(TraceRequest(seconds, chain, len(blocks) * size, 0))
    return Workload(arrivals, size, (_EVENTS_NOTE,))


def _stored_events(path: Path) -> Iterator[tuple[float, StoredEvent]]:
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
    unpacker.feed(path.read_bytes())
    for number, payload in enumerate(unpacker, 1):
        try:
            batch: EventBatch = decode_batch(msgpack.packb(payload))
        except EventDecodeError as error:
            raise TraceError(f"{path}, batch {number}: {error}") from None
        for event in batch.events:
            if (
                isinstance(event, StoredEvent)
                and event.hashes
                and event.block_size
                and event.medium == GPU
                and not event.group
            ):
                yield batch.timestamp, event


def _read_journal(path: Path, block_size: int, ids: BlockNumbers) -> Workload:
    with contextlib.closing(JournalReader(path)) as reader:
        workload = journal_workload(reader, block_size, ids)
    if not workload.arrivals:
        raise TraceError(f"{path}, line 1: the journal has no request to the backend with the sizes of its regions")
    return workload


def journal_workload(reader: JournalReader, block_size: int, ids: BlockNumbers | None = None) -> Workload:
    """Return the prompts of a journal that reached the backend; requests of different tenants share no blocks."""
    rows = list(reader.backend_prompts())
    prompts = [
        _Prompt(row.time, chain_of(row.regions, row.tenant), row.prompt_tokens, row.completion_tokens, row.session)
        for row in rows
    ]
    reported = [(row.prompt_tokens, row.reused_tokens) for row in rows if row.reused_tokens is not None]
    reuse = sum(reused for _, reused in reported) / max(1, sum(tokens for tokens, _ in reported))
    measured = (f"the backend reused {reuse:.1%} of the prompt tokens whose reuse it reported",) if reported else ()
    return _workload_of_regions(prompts, block_size, ids or BlockNumbers(), (_JOURNAL_NOTE, *measured))
