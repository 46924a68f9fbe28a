"""Single classes: a change is noticed, a mistake is forgiven, and a veto is lifted by what was shown."""

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.policies.learned.class_errors import Doubts


def test_one_mistake_takes_a_class_out_and_a_few_right_answers_bring_it_back() -> None:
    doubts = Doubts()
    doubts.compared("a", 0.01, right=False)
    assert doubts.changed("a") > 0.1
    assert doubts.changed("b") == 0.0
    for _ in range(3):
        doubts.compared("a", 0.01, right=True)
    assert doubts.changed("a") < 0.01


def test_a_class_that_goes_on_differing_is_gone_until_an_answer_joins_it_again() -> None:
    doubts = Doubts()
    for _ in range(5):
        doubts.compared("a", 0.05, right=False)
    assert doubts.gone("a")
    for _ in range(8):
        doubts.joined("a")
    assert not doubts.gone("a")


def test_a_class_is_gone_when_it_is_a_thousand_times_likelier_to_have_changed_than_not() -> None:
    doubts = Doubts(odds={"a": 1000.0, "b": 999.0})
    assert doubts.gone("a")
    assert not doubts.gone("b")


STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from("xyz"), max_size=3), st.booleans()))


@given(STEPS)
def test_the_last_comparison_across_a_guard_decides(steps: list[tuple[str, list[str], bool]]) -> None:
    doubts = Doubts()
    last: dict[tuple[str, str], bool] = {}
    for name, guards, right in steps:
        doubts.across(name, guards, right)
        last |= {(name, guard): right for guard in guards}
    for name in "ab":
        standing = [guard for guard in "xyz" if not last.get((name, guard), False)]
        assert doubts.standing(name, "xyz") == next(iter(standing), None)
        assert doubts.standing(name, []) is None
