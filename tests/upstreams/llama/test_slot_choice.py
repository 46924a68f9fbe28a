"""The choice of a slot, against its definition."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.blocks.divergence import common_prefix_length
from kvproxy.upstreams.llama.slots import Slot, choose_slot

# Few different ids, so that long prefixes are common.
IDS = st.lists(st.integers(0, 2) | st.sampled_from([256, 65_536, 2**31 - 1]), max_size=24)


def common(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(IDS, IDS)
def test_the_length_of_a_common_prefix(one: list[int], other: list[int]) -> None:
    assert common_prefix_length(array("i", one), array("i", other)) == common(one, other)
    assert common_prefix_length(array("i", one), array("i", one + other)) == len(one)


@given(
    IDS.filter(bool),
    st.lists(st.tuples(IDS, st.integers(0, 3)), max_size=4),
    st.lists(IDS, max_size=4),
    st.integers(1, 6),
)
def test_the_choice_reuses_the_longest_prefix(
    prompt: list[int], slots: list[tuple[list[int], int]], files: list[list[int]], min_tokens: int
) -> None:
    free = [Slot(at, array("i", tokens), used=float(used)) for at, (tokens, used) in enumerate(slots)]
    saved = [(str(at), array("i", tokens)) for at, tokens in enumerate(files)]
    choice = choose_slot(array("i", prompt), free, saved, min_tokens)
    if not slots:
        assert choice is None
        return
    assert choice is not None
    in_slots = [common(tokens, prompt) for tokens, _ in slots]
    in_files = [common(tokens, prompt) for tokens in files]
    assert choice.kept == in_slots[choice.slot]
    if max(in_files, default=0) >= max(in_slots) + min_tokens:
        assert choice.restore is not None
        assert in_files[int(choice.restore)] == max(in_files)
        assert choice.reused == min(max(in_files), len(prompt) - 1)
    else:
        assert choice.restore is None
        assert choice.reused == min(choice.kept, len(prompt) - 1)
        if max(in_slots) >= min_tokens:
            assert choice.kept == max(in_slots)
    if choice.restore or max(in_slots) < min_tokens:
        # The request overwrites an empty slot, or the least recently used one.
        empty = [at for at, (tokens, _) in enumerate(slots) if not tokens]
        oldest = min(used for tokens, used in slots if not empty or not tokens)
        assert choice.slot in (empty or range(len(slots)))
        assert slots[choice.slot][1] == oldest
