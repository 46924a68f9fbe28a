"""Finds comparisons with exchanged sides: `billiger als die Monatskarte` and `billiger als die Jahreskarte`."""

import re
from functools import lru_cache

_MORE = (
    r"plus|moins|mieux|meilleure?s?|más|menos|mejor(?:es)?|peor(?:es)?|mayor(?:es)?|menor(?:es)?|più|meno|meglio|migliori?"
    r"|peggior[ei]?|mais|melhor(?:es)?|pior(?:es)?|maior(?:es)?"
)
# `than` in German, Dutch, French, Spanish, Portuguese, Italian, Chinese, and Japanese.
_THAN = re.compile(
    rf"\b(?:als|dan|than)\b|\b(?:{_MORE})\b[^.;!?]*?\b(?:que|qu|che|di|del|dell|dello|della|dei|degli|delle)\b"
    r"|(?<=\w)比|[はがも](?=[^。はがも]+より)"
)
_WORD = re.compile(r"[\u30a0-\u30ff]+|[\u3400-\u9fff]|(?:(?![\u3040-\u9fff])[^\W\d_])+")


def comparison_is_exchanged(question: str, other: str) -> bool:
    """Whether a thing is compared in one question to what is compared to it in the other one."""
    (ours, our_basis), (theirs, their_basis) = _sides(question), _sides(other)
    return not (ours - our_basis).isdisjoint(their_basis - theirs) and not (our_basis - ours).isdisjoint(
        theirs - their_basis
    )


@lru_cache(maxsize=4096)
def _sides(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the words before and after `than`."""
    plain = text.lower().replace("’", "'")
    match = _THAN.search(plain)
    if match is None:
        return frozenset(), frozenset()
    return frozenset(_WORD.findall(plain[: match.end()])), frozenset(_WORD.findall(plain[match.end() :]))
