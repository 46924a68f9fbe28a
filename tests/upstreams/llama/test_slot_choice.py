"""Where a request goes, against a model that looks at everything; and token prefixes."""

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.upstreams.llama.packed_tokens import count, first, pack, shared, unpack
from kvproxy.upstreams.llama.slot_choice import Held, choose

# Few different tokens, so that much is shared.
IDS = st.lists(st.integers(0, 2) | st.sampled_from([256, 65_536, 2**31 - 1]), max_size=24)


def common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(IDS, IDS, st.integers(0, 30))
def test_tokens(one: list[int], other: list[int], number: int) -> None:
    assert unpack(pack(one)) == one
    assert count(pack(one)) == len(one)
    assert unpack(first(pack(one), number)) == one[:number]
    assert shared(pack(one), pack(other)) == common(one, other)
    assert shared(pack(one), pack(one + other)) == len(one)


@given(
    IDS.filter(bool),
    st.lists(st.tuples(IDS, st.integers(0, 3)), max_size=4),
    st.lists(IDS, max_size=4),
    st.integers(1, 6),
)
def test_a_plan_reuses_most(
    prompt: list[int], slots: list[tuple[list[int], int]], saved: list[list[int]], least: int
) -> None:
    free = [Held(at, pack(tokens), float(used)) for at, (tokens, used) in enumerate(slots)]
    plan = choose(pack(prompt), free, [(str(at), pack(tokens)) for at, tokens in enumerate(saved)], least)
    if not slots:
        assert plan is None
        return
    assert plan is not None
    in_slots = [common(tokens, prompt) for tokens, _ in slots]
    on_disk = [common(tokens, prompt) for tokens in saved]
    assert plan.keeps == in_slots[plan.slot]
    if max(on_disk, default=0) >= max(in_slots) + least:
        assert plan.restore is not None
        assert on_disk[int(plan.restore)] == max(on_disk)
        assert plan.reused == min(max(on_disk), len(prompt) - 1)
    else:
        assert plan.restore is None
        assert plan.reused == min(plan.keeps, len(prompt) - 1)
        if max(in_slots) >= least:
            assert plan.keeps == max(in_slots)
    if plan.restore or max(in_slots) < least:
        # Nothing that is worth anything is lost: an empty slot, else the one used longest ago.
        empty = [at for at, (tokens, _) in enumerate(slots) if not tokens]
        oldest = min(used for tokens, used in slots if not empty or not tokens)
        assert plan.slot in (empty or range(len(slots)))
        assert slots[plan.slot][1] == oldest
