"""The test double of the verifier."""

from hypothesis import given
from hypothesis import strategies as st

from tests.index.doubles import OverlapVerifier

TEXTS = st.text("ab c", max_size=12)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=5))
def test_scores_are_symmetric_probabilities(pairs: list[tuple[str, str]]) -> None:
    verifier = OverlapVerifier()
    scores = verifier.score(pairs)
    assert scores.shape == (len(pairs),)
    assert scores.dtype == "float32"
    assert ((scores >= 0) & (scores <= 1)).all()
    assert (scores == verifier.score([(other, one) for one, other in pairs])).all()


def test_equal_words_score_one_and_other_words_none() -> None:
    assert OverlapVerifier().score([("How is it?", "how is it"), ("yes", "no")]).tolist() == [1.0, 0.0]
