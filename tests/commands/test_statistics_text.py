"""The statistics of the cache as text."""

import pytest

from kvproxy.commands.journal.savings import _print_notes, _seconds_text
from kvproxy.commands.statistics_text import label_statistics, policy_sentences
from kvproxy.journal.saving import Saving
from kvproxy.journal.savings import SavingsReport


def test_comparisons_include_verdicts_of_people() -> None:
    learned = {"observations": 1, "served": 0, "would_serve": 0.5}
    assert policy_sentences(learned)[0] == "1 verdict on stored responses, by fresh ones or by people, was learned."


@pytest.mark.parametrize(("observations", "is_stated"), [(0, False), (1, False), (99, False), (100, True)])
def test_few_verdicts_state_no_share(observations: int, is_stated: bool) -> None:
    learned = {"observations": observations, "served": 0, "would_serve": 0.5}
    share = "By its own estimate, without checked, learned would answer 50.0% of the recent similar questions."
    assert (share in policy_sentences(learned)) == is_stated
    labels = dict(label_statistics({"semantic": {"learning": learned}}, "cache"))
    assert ("Learned policy: share it alone would serve" in labels) == is_stated


@pytest.mark.parametrize(
    ("expected", "unestimated", "text"),
    [
        (None, 0, "Wrong: unknown, because no comparison estimates it."),
        (0.0, 9, "Wrong: unknown, because no comparison estimates it."),
        (0.5, 4, "Wrong: 0.50 expected, without 4 that no comparison estimates, at most 6 (about 90%"),
        (0.5, 0, "Wrong: 0.50 expected, at most 6 (about 90%"),
    ],
)
def test_wrong_hits_that_nothing_estimates_are_unknown(expected: float | None, unestimated: int, text: str) -> None:
    learned = {"observations": 1, "served": 9, "would_serve": 0.5, "most_wrong": 6}
    sentences = policy_sentences(learned | {"expected_wrong": expected, "unestimated": unestimated})
    assert sentences[-1].startswith(text)
    if expected is None:
        # Metrics, which top reads, omit unknown values.
        assert policy_sentences(learned) == sentences


def test_hits_of_checked_have_the_interval_of_their_comparisons() -> None:
    learned = {"observations": 10, "served": 26, "would_serve": 0.5, "most_wrong": 15, "expected_wrong": 2.6}
    learned |= {"by_checked": 26, "checked_equal": 9, "checked_different": 1, "checked_undecided": 3}
    last = policy_sentences(learned)[-1]
    assert last.startswith("checked alone accepted 26 of them: 1.4% to 57.6% of these are wrong (95% interval).")
    assert last.endswith("9 equal, 1 different, 3 undecided.")
    assert policy_sentences(learned)[-2] == "Wrong: at most 15 of 26."
    assert policy_sentences(learned | {"served": 27})[-2] == "Wrong: at most 15 of 27."
    few = policy_sentences(learned | {"served": 12, "by_checked": 12, "most_wrong": 12})
    assert few[-2].startswith("Wrong: not known yet")
    too_few = policy_sentences(learned | {"checked_equal": 2, "checked_different": 1, "checked_undecided": 0})
    assert too_few[-2:] == [
        "Wrong: not known yet, because of too few comparisons for checked (3).",
        "checked alone accepted 26 of them. Fresh responses to questions that it accepts, also of requests that were not to be"
        " hits: 2 equal, 1 different, 0 undecided.",
    ]
    unknown = policy_sentences(learned | {"checked_equal": 0, "checked_different": 0, "checked_undecided": 0})
    assert unknown[-1] == "Wrong: unknown, because no comparison estimates it."


def test_statistics_state_one_bound_of_wrong_hits_if_checked_accepted_some() -> None:
    learning = {"served": 170, "by_checked": 168, "expected_wrong": 0.03, "most_wrong": 169, "checked_undecided": 10}

    def labels(by_checked: int) -> dict[str, object]:
        values = {"semantic": {"learning": learning | {"by_checked": by_checked}}}
        return dict(label_statistics(values, "cache"))

    bound, expected = "Learned policy: wrong responses, at most", "Learned policy: wrong responses, expected"
    assert (labels(168)[bound], expected in labels(168), expected in labels(0)) == (169, False, True)


def test_the_kinds_of_hits_add_up_and_undecided_comparisons_have_an_advice() -> None:
    learning = {"served": 149, "by_checked": 122, "checked_equal": 50, "checked_different": 3}

    def shown(undecided: int) -> dict[str, object]:
        values = {"semantic": {"learning": learning | {"checked_undecided": undecided}}}
        return dict(label_statistics(values, "cache"))

    hits = [count for label, count in shown(0).items() if "policy: served" in label]
    assert hits == [122, 27]
    label, advice = "Comparisons for checked: undecided", 'set cache.judge = "model"'
    assert shown(50)[label] == 50
    assert str(shown(100)[label]).startswith("100; most were undecided")
    assert str(shown(100)[label]).endswith(advice)
    learned = {"observations": 53, "served": 0, "would_serve": 0.5}
    few, most = (" ".join(policy_sentences(learned | {"undecided": count})) for count in (53, 100))
    assert "Of 153 comparisons, 100 were undecided. Most were undecided" in most
    assert (advice in few, advice in most) == (False, True)


@pytest.mark.parametrize(
    ("marked", "text"),
    [(None, ""), (0, ""), (1, "1 stored response wrong"), (2, "2 stored responses wrong")],
)
def test_savings_tell_how_many_responses_a_person_marked_wrong(
    capsys: pytest.CaptureFixture[str], marked: int | None, text: str
) -> None:
    _print_notes(SavingsReport([], None, None, "USD", semantic=24, marked_wrong=marked), has_price=True)
    shown = " ".join(capsys.readouterr().out.split())
    assert ("A person marked" in shown) == bool(text)
    assert text in shown


def test_hits_without_a_usage_save_an_unknown_amount(capsys: pytest.CaptureFixture[str]) -> None:
    imported = Saving("exact", requests=3, answered=3, unreported_hits=3)
    imported.remove_unknown()
    assert _seconds_text(imported) is None
    assert _seconds_text(Saving("forward", requests=3)) is not None
    _print_notes(SavingsReport([imported], imported, None, "USD"), has_price=False)
    shown = capsys.readouterr().out
    assert shown.startswith("3 hits without reported tokens")
    assert "No price" not in shown
    unpriced = Saving("exact", requests=1, answered=1, unpriced_hits=1)
    _print_notes(SavingsReport([unpriced], unpriced, None, "USD"), has_price=False)
    assert "No price is known" in capsys.readouterr().out


def test_spent_names_the_requests_that_it_omits(capsys: pytest.CaptureFixture[str]) -> None:
    row = Saving("prefix", requests=3, spent=1.0, money=0.5, unpriced_requests=2)
    _print_notes(SavingsReport([row], row, None, "USD"), has_price=True)
    assert "Spent does not include 2 requests of models without a price.\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("seconds", "unmeasured", "money", "said"),
    [
        (5.0, 60, 2.0, ""),
        (6.0, 0, 2.0, "Hits saved 5.0 s of all;"),
        (5.0, 0, 2.0, ""),
        (5.0, 60, 2.5, "Hits saved 2.0000 USD of all;"),
        (6.0, 0, 2.5, "Hits saved 5.0 s and 2.0000 USD of all;"),
    ],
)
def test_the_prefix_cache_saved_the_rest_only_if_there_is_one(
    capsys: pytest.CaptureFixture[str], seconds: float, unmeasured: int, money: float, said: str
) -> None:
    total = Saving("all", 2, 1, 90, 9, 60, seconds, 5.0, unmeasured_tokens=unmeasured, money=money, hit_money=2.0)
    _print_notes(SavingsReport([total], total, None, "USD"), has_price=True)
    shown = capsys.readouterr().out
    assert ("saved the rest" in shown) == bool(said)
    assert said in shown


@pytest.mark.parametrize(("most", "is_loose"), [(28, False), (118, True)])
def test_bounds_of_namespaces_with_few_comparisons_are_told_from_wrong_hits(most: int, is_loose: bool) -> None:
    learning = {"served": 180, "by_checked": 178, "expected_wrong": 0.1, "most_wrong": most, "checked_equal": 22}
    learning |= {"observations": 40, "would_serve": 0.5, "checked_different": 0, "checked_undecided": 0}
    bound, of_all = policy_sentences(learning)[-2:]
    assert ("it adds up the bounds of namespaces" in bound) == is_loose
    assert f"{most} of 180" in bound
    assert of_all.startswith("checked alone accepted 178 of them: 0.0% to 14.9% of these are wrong")
    shown = dict(label_statistics({"semantic": {"learning": learning}}, "cache"))
    assert ("not known yet" in str(shown["Learned policy: wrong responses, at most"])) == is_loose


def test_the_statistics_state_that_nothing_estimates_wrong_hits() -> None:
    learning = {"served": 3, "by_checked": 3, "expected_wrong": None, "most_wrong": 3}
    label = "Learned policy: wrong responses, at most"
    shown = dict(label_statistics({"semantic": {"learning": learning}}, "cache"))
    assert shown[label] == "unknown, because no comparison estimates it"
    assert (
        dict(label_statistics({"semantic": {"learning": learning | {"served": 0, "most_wrong": 0}}}, "cache"))[label]
        == 0
    )
