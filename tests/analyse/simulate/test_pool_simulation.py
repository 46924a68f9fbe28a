"""Simulated caches against the block cache, and against the optimal policy."""

import gzip
import itertools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproxy.analyse.simulate import pool_size_sweep
from kvproxy.analyse.simulate.ceilings import ceilings
from kvproxy.analyse.simulate.pool_simulation import (
    ChainRequest,
    SimulatedPool,
    TraceRequest,
    cached_prefix_length,
    policy_names,
    simulate,
)
from kvproxy.analyse.simulate.pool_size_sweep import default_sizes, sweep
from kvproxy.analyse.simulate.trace_reader import TraceError, read_chains, read_trace
from kvproxy.blocks.manager import KVCacheManager
from kvproxy.doors import EVICTION
from tests.benchmarks.sampled_rates import make_trace, sampling_errors
from tests.blocks.driver import serve

DATA = Path(__file__).parent / "data"


def chains(paths: list[list[int]]) -> list[ChainRequest]:
    """Requests whose equal beginnings have equal ids."""
    ids: dict[tuple[int, ...], int] = {}
    blocks = [tuple(ids.setdefault(tuple(path[: end + 1]), len(ids)) for end in range(len(path))) for path in paths]
    return [ChainRequest(each, len(each), False) for each in blocks]


PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=40)


@pytest.mark.parametrize("policy", EVICTION.names())
@settings(max_examples=60, deadline=None)
@given(PATHS, st.integers(7, 15))
def test_a_simulated_pool_hits_what_the_block_cache_hits(policy: str, paths: list[list[int]], capacity: int) -> None:
    manager = KVCacheManager(capacity + 1, 2, policy=policy)
    for number, path in enumerate(paths):
        # One token more than whole blocks, so that no block is computed twice.
        serve(manager, str(number), [*(token for token in path for _ in range(2)), 9])
    requests = [ChainRequest(request.blocks, request.reusable, True) for request in chains(paths)]
    assert manager.num_hit_tokens // 2 == simulate(requests, capacity, policy).hits


def most_hits(requests: list[ChainRequest], capacity: int) -> int:
    """Return the hits of the best of all orders of eviction."""
    best = {frozenset[int](): 0}
    for request in requests:
        if request.size > capacity:
            continue
        following: dict[frozenset[int], int] = {}
        for cached, hits in best.items():
            hits += min(cached_prefix_length(request.blocks, cached), request.reusable)
            idle = cached - set(request.blocks)
            num_kept = min(len(idle), capacity - request.size)
            for kept in itertools.combinations(idle, num_kept):
                pool = frozenset(kept).union(request.blocks)
                following[pool] = max(hits, following.get(pool, 0))
        best = following
    return max(best.values())


SHORT_PATHS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=9)


@settings(max_examples=100, deadline=None)
@given(SHORT_PATHS, st.integers(2, 6), st.data())
def test_nothing_beats_foresight(paths: list[list[int]], capacity: int, data: st.DataObject) -> None:
    """Also with refused requests, last blocks that cannot be hits, and incomplete blocks."""
    requests = [
        replace(request, reusable=len(request.blocks) - data.draw(st.integers(0, 1)), partial=data.draw(st.booleans()))
        for request in chains(paths)
    ]
    best = simulate(requests, capacity, "belady").hits
    assert all(simulate(requests, capacity, policy).hits <= best for policy in policy_names())
    assert best == most_hits(requests, capacity)
    assert best <= simulate(requests, None, "lru").hits


def test_foresight_ignores_requests_that_the_pool_refuses_and_uses_that_cannot_be_hits() -> None:
    refused = [((0, 1, 2), 3, True), ((0, 1, 2, 3), 4, True), ((4,), 0, False), ((0,), 1, True), ((0,), 0, False)]
    refused += [((4,), 1, True), ((4, 5), 2, True)]
    last = [((0, 1, 2, 3), 3, False), ((4, 5, 6, 7), 3, False), ((0,), 1, True), ((4, 8, 9), 3, True)]
    last += [((4, 5, 6), 2, False), ((0, 10), 2, True)]
    for parts, capacity, hits in ((refused, 4, 3), (last, 6, 5)):
        assert simulate([ChainRequest(*each) for each in parts], capacity, "belady").hits == hits


@settings(max_examples=50, deadline=None)
@given(PATHS, st.integers(6, 12), st.sampled_from(EVICTION.names()))
def test_no_parent_goes_before_its_children(paths: list[list[int]], capacity: int, policy: str) -> None:
    cache = SimulatedPool(capacity, EVICTION.create(policy, capacity))
    for request in chains(paths):
        cache.serve(request)
        assert len(cache._parents) <= capacity
        assert all(parent is None or parent in cache._parents for parent in cache._parents.values())


def test_mooncake_slice_against_the_obvious_cache() -> None:
    requests, tokens = read_chains(str(DATA / "mooncake-300.jsonl"))
    with pytest.raises(TraceError, match="cannot be read"):
        read_chains("nowhere.jsonl")
    assert tokens == 512
    assert len(requests) == 300
    lines = [json.loads(line) for line in (DATA / "mooncake-300.jsonl").read_text().splitlines()]
    seen: set[int] = set()
    hits = 0
    for line in lines:
        full = line["hash_ids"][: line["input_length"] // 512]
        reusable = (line["input_length"] - 1) // 512
        hits += sum(1 for place, id in enumerate(full) if id in seen and place < reusable)
        seen.update(full)
    blocks, sizes = sum(len(line["hash_ids"]) for line in lines), default_sizes(requests, 3)
    # The arguments that docs/library.md names.
    result = sweep(requests, tokens, sizes, ["lru", "belady"])
    assert result.unlimited == hits / blocks
    assert result.rates["lru"][-1] <= result.rates["belady"][-1] <= result.unlimited
    assert result.sufficient_size("belady") in result.sizes


def test_ceilings_by_each_definition() -> None:
    """By hand: prompts of 4, 8, 4, and 2 blocks, of 10 tokens each, reuse 0, 30, 30, and 10 tokens."""
    prompts = [(0, 1, 2, 3), (0, 1, 2, 9, 10, 11, 12, 13), (0, 1, 2, 3), (0, 1)]
    arrivals = [
        TraceRequest(float(at), ChainRequest(blocks, len(blocks) - 1, False), 10 * len(blocks), 0)
        for at, blocks in enumerate(prompts)
    ]
    found = ceilings(arrivals, 10)
    assert found.whole == pytest.approx(70 / 180)
    assert found.second_half == pytest.approx(40 / 60)
    assert found.mean == pytest.approx((0 + 3 / 8 + 3 / 4 + 1 / 2) / 4)


def test_default_sizes_of_a_small_trace_differ_by_a_tenth() -> None:
    sizes = default_sizes([ChainRequest(tuple(range(place, place + 100)), 100, False) for place in range(40)])
    assert sizes[0] == 101
    assert sizes[-1] == 139
    assert all(larger >= 1.1 * smaller - 1 for smaller, larger in itertools.pairwise(sizes))


def lines(*requests: Any) -> str:
    return "".join(json.dumps(request) + "\n" for request in requests)


def test_blocks_of_qwen_bailian_have_16_tokens(tmp_path: Path) -> None:
    trace = tmp_path / "qwen.jsonl"
    first = {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.1, "input_length": 85, "output_length": 9}
    first |= {"type": "text", "turn": 1, "hash_ids": [1, 2, 3, 4, 5, 6]}
    second = first | {"chat_id": 2, "timestamp": 60.5, "input_length": 64, "hash_ids": [1, 2, 3, 4]}
    trace.write_text(lines(first, second))
    requests, size = read_chains(trace)
    assert size == 16
    assert simulate(requests, None, "lru").hits == 3
    assert [arrival.seconds for arrival in read_trace(trace).arrivals] == [0.1, 60.5]


def test_an_agent_trace_of_weka_names_its_block_size(tmp_path: Path) -> None:
    sub_agent = {"t": 10.0, "type": "subagent", "requests": [{"t": 1.0, "in": 70, "out": 1, "hash_ids": [9]}]}
    request = {"t": 0.0, "type": "n", "in": 200, "out": 5, "hash_ids": [1, 2, 3]}
    again = request | {"t": 12.0, "in": 260, "hash_ids": [1, 2, 3, 4]}
    whole = {"id": "a", "block_size": 64, "hash_id_scope": "local", "requests": [request, again, sub_agent]}
    trace = tmp_path / "trace.json.gz"
    trace.write_bytes(gzip.compress(json.dumps(whole).encode()))
    requests, size = read_chains(trace)
    assert (size, [len(each.blocks) for each in requests]) == (64, [3, 1, 4])
    assert simulate(requests, None, "lru").hits == 3
    assert [arrival.seconds for arrival in read_trace(trace).arrivals] == [0.0, 11.0, 12.0]


def test_a_file_of_prompts_names_the_command_that_reads_it(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("What is a block?\nWhat is a tier?\n")
    with pytest.raises(
        TraceError, match=r"line 1: not JSON .*; kvproxy estimate --format prompts reads a prompt per line"
    ):
        read_chains(prompts)


def test_a_block_size_that_contradicts_the_token_counts_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text(lines({"input_length": 5000, "hash_ids": [1, 2, 3]}))
    with pytest.raises(
        TraceError, match=r"line 1: 5,000 tokens do not fill 3 blocks of 512 tokens: give the block size"
    ):
        read_chains(trace)
    assert read_chains(trace, 2000)[1] == 2000
    with pytest.raises(TraceError, match="3 blocks of 16 tokens"):
        read_chains(trace, 16)
    trace.write_text(lines({"input_length": 100, "hash_ids": [1, 2, 3], "block_size": 48}))
    assert read_chains(trace)[1] == 48


small = st.one_of(st.none(), st.booleans(), st.integers(-2, 12), st.just(2**70), st.floats(), st.text(max_size=3))
values = st.recursive(
    small, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
)
mooncake = st.fixed_dictionaries(
    {
        "timestamp": st.integers(0, 9) | values,
        "input_length": st.integers(0, 2000) | values,
        "hash_ids": st.lists(st.integers(0, 9)) | values,
    }
)
logs = st.fixed_dictionaries(
    {"tokens": st.lists(st.integers(0, 9)) | values}, optional={"timestamp": st.integers(0, 9) | values}
)


@given(st.lists(mooncake, min_size=1, max_size=4) | st.lists(logs, max_size=4) | st.lists(values, max_size=3))
@settings(max_examples=30, deadline=None)
def test_any_trace_is_read_or_refused_with_its_line(requests: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        trace.write_text(lines(*requests))
        try:
            found, _ = read_chains(trace, 4)
            assert len(found) == len(requests)
            assert all(0 <= request.reusable <= len(request.blocks) for request in found)
        except TraceError as error:
            told = str(error)
            assert "line" in told


def one(*blocks: int, reusable: int = 1) -> ChainRequest:
    return ChainRequest(blocks, reusable, False)


@pytest.mark.parametrize(
    ("requests", "capacity", "policy", "message"),
    [
        ([], 8, "fifo", "use lru"),
        ([], 0, "lru", "at least 1 block"),
        ([], "5", "lru", "the capacity must be an int, not str"),
        ([(1, 2)], 5, "lru", r"requests\[0\] must be a ChainRequest, not tuple"),
        ([one(1), one(2, reusable=-3)], 5, "lru", r"requests\[1\].reusable must be from 0 to 1, .* but it is -3"),
        ([one(2, reusable=2)], 5, "lru", "must be from 0 to 1"),
        ([one(1, 2, 1)], 5, "lru", "block 1 follows block 2 here, but begins the prompt before"),
        ([one(1, 2), one(3, 2)], 5, "lru", "block 2 follows block 3 here, but follows block 1 before"),
    ],
)
def test_a_wrong_argument_is_explained(requests: Any, capacity: Any, policy: str, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        simulate(requests, capacity, policy)
    if capacity:
        with pytest.raises((TypeError, ValueError), match=message.replace("the capacity", "a size")):
            sweep(requests, 16, [capacity], [policy])


@pytest.mark.parametrize(
    ("block_tokens", "tokens", "message"),
    [
        (0, None, "block_tokens must be at least 1 token, but it is 0"),
        (-16, None, "but it is -16"),
        (16, 1, "tokens must be at least the 64 tokens of the full blocks, but it is 1"),
        (16, 0, "but it is 0"),
    ],
)
def test_wrong_tokens_are_explained(block_tokens: int, tokens: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sweep([one(1, 2), one(1, 2)], block_tokens, [4], ["lru"], tokens=tokens)


@pytest.mark.parametrize(("size", "kind"), [(0, ValueError), (-1, ValueError), ("16", TypeError)])
def test_a_wrong_block_size_is_explained(size: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="block_size must be"):
        read_chains(DATA / "mooncake-300.jsonl", size)


def test_the_errors_of_sampled_rates_are_at_most_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_size_sweep, "MIN_SAMPLED", 0)
    for number in range(2):
        for policy, errors in sampling_errors(make_trace(number, 6_000), [1500]).items():
            assert max(map(abs, errors)) <= pool_size_sweep.SAMPLED_ERROR, policy


def test_a_trace_may_be_a_generator() -> None:
    trace = [one(1), one(2), one(1)]
    assert simulate(iter(trace), None, "lru") == simulate(trace, None, "lru")
    assert sweep(iter(trace), 16, [2], ["lru", "belady"]) == sweep(trace, 16, [2], ["lru", "belady"])


def test_tokens_of_an_incomplete_block_are_integers(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"tokens": [1.5]}')
    with pytest.raises(TraceError, match=r"line 1: bad request .*tokens must be integers, not float"):
        read_chains(trace, 16)
