"""Guards veto a semantic hit if the words of the two questions show that they need different answers.

The embeddings of `enable 2FA` and `disable 2FA`, or `version 2` and `version 3`, are similar.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvproxy.index.policies.guards.added_content import adds_content
from kvproxy.index.policies.guards.fillers import without_fillers
from kvproxy.index.policies.guards.grammar import grammar_differs
from kvproxy.index.policies.guards.names_and_case import case_differs, names_differ, possession_differs
from kvproxy.index.policies.guards.negation_and_opposites import has_opposites, negation_differs
from kvproxy.index.policies.guards.noun_kinds import noun_differs
from kvproxy.index.policies.guards.numbers_and_code import (
    code_differs,
    numbers_differ,
    quotes_differ,
    signs_differ,
    units_differ,
)
from kvproxy.index.policies.guards.question_and_format import (
    answer_format_differs,
    language_differs,
    question_words_differ,
    time_differs,
)
from kvproxy.index.policies.guards.word_order import has_exchanged_words, roles_differ


@dataclass(frozen=True, slots=True)
class Guard:
    """`differs` compares two questions without fillers; users see `difference` as the reason of a veto."""

    name: str
    difference: str
    differs: Callable[[str, str], bool]

    def vetoes(self, question: str, cached_question: str) -> bool:
        """Return whether two questions need different answers."""
        return self.differs(without_fillers(question), without_fillers(cached_question))


GUARDS = (
    Guard("numbers", "other numbers", numbers_differ),
    Guard("units", "other units", units_differ),
    Guard("negation", "only one is negated", negation_differs),
    Guard("opposites", "a word and its opposite", has_opposites),
    Guard("quotes", "other quotations", quotes_differ),
    Guard("code", "other identifiers, options, or paths", code_differs),
    Guard("names", "other names", names_differ),
    Guard("order", "same words, other direction", has_exchanged_words),
    Guard("possession", "other owners", possession_differs),
    Guard("roles", "subject and object exchanged", roles_differ),
    Guard("time", "other times", time_differs),
    Guard("question", "other question words", question_words_differ),
    Guard("language", "other languages", language_differs),
    Guard("form", "another length or format of the answer", answer_format_differs),
    Guard("nouns", "another thing of the same kind", noun_differs),
    Guard("grammar", "another owner, tense, modal verb, quantifier, or time relation", grammar_differs),
    Guard("signs", "other signs or accents", signs_differ),
    Guard("case", "other upper and lower case", case_differs),
)
ADDITIONS = Guard("additions", "one asks for more", adds_content)
"""A guard of the policy `checked` only, because the policy `learned` learns which additions change an answer."""
