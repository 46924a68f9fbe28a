"""Single classes: a change is noticed, a mistake is forgiven, and a veto is lifted by what was shown."""

from hypothesis import given
from hypothesis import strategies as st

from kvproxy.index.policies.learned.class_errors import ClassErrors


def test_one_mistake_takes_a_class_out_and_a_few_right_answers_bring_it_back() -> None:
    doubts = ClassErrors()
    doubts.add_comparison("a", 0.01, right=False)
    assert doubts.change_probability("a") > 0.1
    assert doubts.change_probability("b") == 0.0
    for _ in range(3):
        doubts.add_comparison("a", 0.01, right=True)
    assert doubts.change_probability("a") < 0.01


def test_a_class_that_goes_on_differing_is_gone_until_an_answer_joins_it_again() -> None:
    doubts = ClassErrors()
    for _ in range(5):
        doubts.add_comparison("a", 0.05, right=False)
    assert doubts.is_obsolete("a")
    for _ in range(8):
        doubts.add_member("a")
    assert not doubts.is_obsolete("a")


def test_a_class_is_gone_when_it_is_a_thousand_times_likelier_to_have_changed_than_not() -> None:
    doubts = ClassErrors(odds={"a": 1000.0, "b": 999.0})
    assert doubts.is_obsolete("a")
    assert not doubts.is_obsolete("b")


STEPS = st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from("xyz"), max_size=3), st.booleans()))


@given(STEPS)
def test_the_last_comparison_across_a_guard_decides(steps: list[tuple[str, list[str], bool]]) -> None:
    doubts = ClassErrors()
    last: dict[tuple[str, str], bool] = {}
    for name, guards, right in steps:
        doubts.update_guards(name, guards, right)
        last |= {(name, guard): right for guard in guards}
    for name in "ab":
        standing = [guard for guard in "xyz" if not last.get((name, guard), False)]
        assert doubts.standing_veto(name, "xyz") == next(iter(standing), None)
        assert doubts.standing_veto(name, []) is None
