"""Guards veto a neighbour if its words show that the two questions need different answers.

Embeddings put `enable 2FA` close to `disable 2FA`, and `version 2` close to `version 3`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvproxy.index.policies.guards.added_content import adds_content
from kvproxy.index.policies.guards.answer_format import form_differs
from kvproxy.index.policies.guards.exchanged_roles import order_differs
from kvproxy.index.policies.guards.letter_case import case_differs
from kvproxy.index.policies.guards.names import names_differ, possession_differs
from kvproxy.index.policies.guards.negation_and_opposites import are_opposites, negation_differs
from kvproxy.index.policies.guards.quantities import numbers_differ, units_differ
from kvproxy.index.policies.guards.question_kinds import language_differs, question_differs, time_differs
from kvproxy.index.policies.guards.quotations_and_code import code_differs, quotes_differ, signs_differ
from kvproxy.index.policies.guards.subject_and_object import roles_differ


@dataclass(frozen=True, slots=True)
class Guard:
    """A named veto. `vetoes(question, cached_question)` returns whether one answer must not serve both questions.

    Attributes:
        difference: the difference of the two questions, in plain words.
    """

    name: str
    difference: str
    vetoes: Callable[[str, str], bool]


GUARDS = (
    Guard("numbers", "other numbers", numbers_differ),
    Guard("units", "other units", units_differ),
    Guard("negation", "only one is negated", negation_differs),
    Guard("opposites", "a word and its opposite", are_opposites),
    Guard("quotes", "other quotations", quotes_differ),
    Guard("code", "other identifiers, options, or paths", code_differs),
    Guard("names", "other names", names_differ),
    Guard("order", "same words, other direction", order_differs),
    Guard("possession", "other owners", possession_differs),
    Guard("roles", "subject and object exchanged", roles_differ),
    Guard("time", "other times", time_differs),
    Guard("question", "other question words", question_differs),
    Guard("language", "other languages", language_differs),
    Guard("form", "another length or format of the answer", form_differs),
    Guard("signs", "other signs or accents", signs_differ),
    Guard("case", "other upper and lower case", case_differs),
)
ADDITIONS = Guard("additions", "one asks for more", adds_content)
"""The guard of `checked` alone: `learned` finds out which additions matter to an answer."""
