"""Manager, queue and fork against the naive model, over random operations, with every invariant checked at each step."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from kvproxy.blocks.block_hash import BlockHasher
from kvproxy.blocks.cache_request import CacheRequest
from kvproxy.blocks.manager import KVCacheManager
from tests.reference.integrity import check_integrity
from tests.reference.naive_blocks import NaiveCache

SIZE = 3
# Few distinct tokens and long common beginnings, so that hits, duplicates and evictions are frequent.
PROMPTS = st.one_of(
    st.lists(st.integers(0, 1), min_size=1, max_size=16), st.integers(1, 16).map(lambda length: [7] * length)
)


class BlockMachine(RuleBasedStateMachine):
    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.real = KVCacheManager(14, SIZE, hasher=BlockHasher(seed="x"))
        self.naive = NaiveCache(14, SIZE)
        self.requests: dict[str, CacheRequest] = {}
        self.counter = 0

    def name(self) -> str:
        self.counter += 1
        return f"r{self.counter}"

    @rule(target=live, prompt=PROMPTS, salt=st.sampled_from([None, None, "s"]), count=st.integers(1, 16))
    def start(self, prompt: list[int], salt: str | None, count: int) -> str:
        id = self.name()
        request = CacheRequest(id, prompt, salt=salt)
        computed = self.real.get_computed_blocks(request)
        new = min(count, request.num_tokens - computed.num_tokens)
        done = self.real.allocate_slots(request, new, computed)
        assert (done is not None) == self.naive.start(id, prompt, salt, count)
        if done is not None:
            request.num_computed_tokens = computed.num_tokens + new
            self.requests[id] = request
        return id

    @rule(id=live, count=st.integers(1, 6))
    def extend(self, id: str, count: int) -> None:
        if id not in self.requests:
            return
        request = self.requests[id]
        new = min(count, request.num_tokens - request.num_computed_tokens)
        if new:
            self.grow(id, new)

    @rule(id=live, token=st.integers(0, 1))
    def decode(self, id: str, token: int) -> None:
        request = self.requests.get(id)
        if request is not None and request.num_tokens == request.num_computed_tokens:
            request.append(token)
            self.naive.live[id].tokens.append(token)
            self.grow(id, 1)

    def grow(self, id: str, count: int) -> None:
        request = self.requests[id]
        done = self.real.allocate_slots(request, count)
        assert (done is not None) == self.naive.grow(self.naive.live[id], count)
        if done is None:
            self.end(id)
        else:
            request.num_computed_tokens += count

    @rule(target=live, parent=live)
    def fork(self, parent: str) -> str:
        id = self.name()
        if parent in self.requests:
            self.requests[id] = CacheRequest(id, [], salt=self.requests[parent].salt)
            self.real.fork(self.requests[parent], self.requests[id])
            self.naive.fork(parent, id)
        return id

    @rule(id=consumes(live))
    def end(self, id: str) -> None:
        if id in self.requests:
            self.real.free(self.requests.pop(id))
            self.naive.end(id)

    @rule()
    def reset(self) -> None:
        assert self.real.reset_prefix_cache() == self.naive.reset()

    @precondition(lambda self: self.naive.copies)
    @rule()
    def copy(self) -> None:
        assert self.real.take_copies() == self.naive.take_copies()

    @invariant()
    def agree(self) -> None:
        check_integrity(self.real)
        assert [block.id for block in self.real.pool.free_queue] == self.naive.free
        assert {block.id for block in self.real.pool.blocks if block.hash} == set(self.naive.names)
        assert self.real.pool.num_evictions == self.naive.evictions
        for id, request in self.naive.live.items():
            assert self.real.get_block_ids(id)[0] == request.table


TestBlocks = BlockMachine.TestCase
TestBlocks.settings = settings(max_examples=70, stateful_step_count=40, deadline=None)
