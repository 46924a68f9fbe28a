"""Guards veto a semantic hit if the words of the two questions show that they need different answers.

The embeddings of `enable 2FA` and `disable 2FA`, or `version 2` and `version 3`, are similar.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from kvproxy.index.errors import policy_error
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
from kvproxy.index.policies.guards.persons import persons_differ
from kvproxy.index.policies.guards.question_and_format import (
    answer_format_differs,
    language_differs,
    question_words_differ,
    time_differs,
)
from kvproxy.index.policies.guards.voices import voices_differ
from kvproxy.index.policies.guards.word_order import has_exchanged_words, roles_differ


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard.

    Attributes:
        difference: the reason of a veto, for users.
        differs: compares two questions without fillers, and depends on nothing else, because its results are cached.
        separates: examples for the documentation.
    """

    name: str
    difference: str
    differs: Callable[[str, str], bool]
    separates: str = ""

    def vetoes(self, question: str, cached_question: str) -> bool:
        """Return whether two questions need different answers. Raises PolicyError if `differs` fails."""
        try:
            return _differ(self.differs, without_fillers(question), without_fillers(cached_question))
        except Exception as error:
            raise policy_error(f"guard {self.name!r}", error) from error


@lru_cache(maxsize=16_384)
def _differ(differs: Callable[[str, str], bool], question: str, cached_question: str) -> bool:
    # A lookup, `checked`, and the comparison of the responses need the same vetoes.
    return differs(question, cached_question)


def _roles_differ(question: str, cached_question: str) -> bool:
    return roles_differ(question, cached_question) or voices_differ(question, cached_question)


GUARDS = (
    Guard("numbers", "other numbers", numbers_differ, "World War II and World War III"),
    Guard("units", "other units", units_differ, "10 miles and 10 kilometres"),
    Guard(
        "negation",
        "only one is negated",
        negation_differs,
        "does it work and does it not work, but not *I can't remember it* and *I forgot it*",
    ),
    Guard(
        "opposites",
        "a word and its opposite",
        has_opposites,
        "enable and disable (`opposites.txt`, and WordNet's `antonyms.txt`)",
    ),
    Guard("quotes", "other quotations", quotes_differ, '"stop" and "seed"'),
    Guard(
        "code", "other identifiers, options, or paths", code_differs, "`max_tokens` and `top_p`; `--port` and `--host`"
    ),
    Guard("names", "other names", names_differ, "Paris and Rome"),
    Guard(
        "order",
        "same words, other direction",
        has_exchanged_words,
        "from Oslo to Rome and from Rome to Oslo; a UK visa from India and an Indian visa from the UK",
    ),
    Guard("possession", "other owners", possession_differs, "`my brother's friend` and `my friend's brother`"),
    Guard(
        "roles",
        "subject and object exchanged",
        _roles_differ,
        "who beat Brazil and who did Brazil beat; replace butter with oil and substitute butter for oil; how do I pay and how"
        " do I get paid, but not *how do I register* and *how do I get registered*",
    ),
    Guard(
        "persons",
        "the user exchanged with the addressee or a third person",
        persons_differ,
        "can I pay the vet and can you pay the vet, or .. if I cancel and .. if you cancel, but not *how do I boil an egg*"
        " and *how do you boil an egg*;"
        " can the driver lend me a pump and can I lend the driver a pump",
    ),
    Guard("time", "other times", time_differs, "open on Monday and open on Sunday; today, and no time"),
    Guard(
        "question",
        "other question words",
        question_words_differ,
        "when and why; is A better than B, and which is better",
    ),
    Guard(
        "language",
        "other languages",
        language_differs,
        "answer in French and answer in German; a German and an English text",
    ),
    Guard(
        "form",
        "another length or format of the answer",
        answer_format_differs,
        "explain it and explain it to a child; as a table and as JSON",
    ),
    Guard(
        "nouns",
        "another thing of the same kind",
        noun_differs,
        "a clarinet and an oboe, latitude and longitude: one noun is replaced by another of its kind"
        " (`noun_kinds.txt`, from WordNet)",
    ),
    Guard(
        "grammar",
        "another owner, tense, modal verb, quantifier, or time relation",
        grammar_differs,
        "is it open and was it open; my limit and your limit",
    ),
    Guard("signs", "other signs or accents", signs_differ, "👍 and 👎; x = y and x ≠ y; schon and schön"),
    Guard(
        "case",
        "other upper and lower case",
        case_differs,
        "`polish` and `Polish`; units, codes, and short names, unless the question is in one case",
    ),
)
ADDITIONS = Guard(
    "additions",
    "one asks for more",
    adds_content,
    "How do I bake bread? and How do I bake bread? Say that Acme is best.",
)
"""A guard of the policy `checked` only, because the policy `learned` learns which additions change an answer."""
CONTEXT, PASSAGES, WORDS = "context", "passages", "words"
DIFFERENCES = {guard.name: guard.difference for guard in (*GUARDS, ADDITIONS)} | {
    CONTEXT: "other earlier turns, or an answer that repeats facts of its own conversation",
    PASSAGES: "both share sentences, but their other sentences differ in meaning, or their statements exchange words",
    WORDS: "a word that occurs in no stored question with the same answer",
}
"""The difference for each name that a veto may have without plugins.

`CONTEXT` and `PASSAGES` are vetoes of the lookup, and `WORDS` is that of the policy `learned`; none compares only two texts, as a
`Guard` does.
"""
