"""Guards veto a neighbour if its words show that the two questions need different answers.

Embeddings put `enable 2FA` close to `disable 2FA`, and `version 2` close to `version 3`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kvproxy.index.policies.guards.answer_format import form_differs
from kvproxy.index.policies.guards.letter_case import case_differs
from kvproxy.index.policies.guards.names import names_differ, order_differs, possession_differs
from kvproxy.index.policies.guards.negation_and_opposites import are_opposites, negation_differs
from kvproxy.index.policies.guards.quantities import numbers_differ, units_differ
from kvproxy.index.policies.guards.question_kinds import language_differs, question_differs, time_differs
from kvproxy.index.policies.guards.quotations_and_code import code_differs, quotes_differ, signs_differ
from kvproxy.index.policies.guards.subject_and_object import roles_differ


@dataclass(frozen=True, slots=True)
class Guard:
    """A named veto. `vetoes(question, cached_question)` returns whether one answer must not serve both questions."""

    name: str
    vetoes: Callable[[str, str], bool]


GUARDS = (
    Guard("numbers", numbers_differ),
    Guard("units", units_differ),
    Guard("negation", negation_differs),
    Guard("opposites", are_opposites),
    Guard("quotes", quotes_differ),
    Guard("code", code_differs),
    Guard("names", names_differ),
    Guard("order", order_differs),
    Guard("possession", possession_differs),
    Guard("roles", roles_differ),
    Guard("time", time_differs),
    Guard("question", question_differs),
    Guard("language", language_differs),
    Guard("form", form_differs),
    Guard("signs", signs_differ),
    Guard("case", case_differs),
)
