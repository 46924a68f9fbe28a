"""Decides whether the earlier turns of two conversations, which were held independently, call for the same answer.

Turns alternate between the user and the assistant, and begin with the user. All functions compare two conversations in both
directions, because one may state a fact that the other lacks.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import product

from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.guards.fillers import without_fillers
from kvproxy.index.policies.guards.negation_and_opposites import negation_differs
from kvproxy.index.policies.guards.words import words
from kvproxy.index.policies.learned.answer_classes import text_digest
from kvproxy.index.policies.learned.answer_facts import answer_facts
from kvproxy.index.search.earlier_statements import (
    SENTENCE_END,
    SMALL_TALK,
    describes_user,
    earlier_statements,
    has_content,
    is_own_case,
    is_pleasantry,
    is_question,
    statements_of,
    states_facts,
)
from kvproxy.index.search.last_turns import asks, is_standalone
from kvproxy.index.search.reported_statements import without_report
from kvproxy.index.search.statement_roles import (
    are_exchanged,
    are_reordered,
    exchange_roles,
    replace_repeated_words,
    subjects_differ,
)
from kvproxy.index.search.turn_words import (
    content_words,
    have_equal_content,
    names_of,
    quantities,
    roots_of,
    unknown_words,
)

MAX_TURNS_OF_FREE_WORDING = 19
_MAX_TURN_BYTES = 800
_JOKING = re.compile(r"\b(?:lol|haha|hope|unrelated|random)\b", re.IGNORECASE)
_JOKE_END = re.compile(r"(?:(?<=\blol)|(?<=\bhaha))[,.]?\s+", re.IGNORECASE)
_OWN_FACT = re.compile(
    r"\b(?:(?:i|we)(?:'ve| have)? (?:already |only |also )?(?:have|need|use|live|work|own|rent|pay|paid|sign|signed|bought"
    r"|ordered|booked|got|can't|cannot|don't|didn't|do not|did not|never)"
    r"|(?:i'm|i am|we're|we are) (?!more|so\b|just|really|sure|afraid|wondering|curious|sorry|glad|happy|nervous|excited|trying"
    r"|thinking|looking)|my \w+(?:'s| is| are| has) (?!thinking|looking|wondering|asking))",
    re.IGNORECASE,
)
_OWN_THING = re.compile(r"\b(?:my|our)\b", re.IGNORECASE)
_PLEASANTRY = re.compile(
    r"^\W*(?:(?:oh )?no (?:worries|problem|rush)|oh no|not (?:at all|an? \w+ question)|never mind)\b(?: at all)?[\s,.!;]*"
    r"|(?<=[,.!] )no (?:worries|problem|rush)[\s,.!;]+",
    re.IGNORECASE,
)
# Words with which an assistant introduces a fact, as in `I found this: ..`.
_REPORTS = frozenset(
    "thank see find found look looked check checked read heard know known note notes say says here following".split()
)
# An assistant's sentence may say these in passing. Words that choose among things are no courtesies.
_COURTESIES = SMALL_TALK | frozenset("because still too either also though now current currently".split())
_COURTESIES -= frozenset(
    "first last one another other more today nearly exactly have do did chat bot meet reading sharing telling information"
    " everything choice general random problem morning afternoon evening night".split()
)
_PASSING = _COURTESIES | _REPORTS
_THIS_DAY = re.compile(r"\bthis (?=(?:mon|tues|wednes|thurs|fri|satur|sun)day\b)", re.IGNORECASE)
_ABOUT_USER = frozenset("you your you're you've".split())
_COVERED, _NEARLY_COVERED, _EQUAL_SHARE = 0.5, 0.8, 0.8
_COPY_RATIO = 0.62
_FEW_WORDS = 4
_NUM_TURNS_OF_ONE_TOPIC = 3
_MIN_LENGTH_OF_PREFIX, _MIN_LENGTH_OF_WORD = 4, 3


@dataclass(frozen=True, slots=True)
class Context:
    """The turns of a conversation, the last of which is a question."""

    turns: tuple[str, ...]

    @property
    def last(self) -> str:
        return self.turns[-1]

    @property
    def user_turns(self) -> Sequence[str]:
        return self.turns[::2]

    @property
    def is_opened(self) -> bool:
        """Whether only greetings precede the last turn, so that it has nothing to refer to."""
        earlier = self.turns[:-1]
        return len(earlier) <= 2 and not any(has_content(each) for turn in earlier for each in SENTENCE_END.split(turn))

    @property
    def text(self) -> str:
        return " ".join(self.turns)

    @property
    def earlier_text(self) -> str:
        return " ".join(self.turns[:-1])


def need_no_context(ours: Context, theirs: Context, are_alike: Callable[[str, str], bool]) -> bool:
    """Whether both last turns are standalone, and the earlier turns have statements of the same meaning, or none.

    After small talk only, such as greetings, a last turn has nothing to refer to, so that it need not be standalone.
    """
    if ours.is_opened and theirs.is_opened:
        return True
    if not (is_standalone(ours.last) and is_standalone(theirs.last)):
        return False
    statements, their_statements = earlier_statements(ours.turns), earlier_statements(theirs.turns)
    if len(statements) != len(their_statements) or _have_other_results(ours, theirs):
        return False
    return all(map(are_alike, statements, their_statements))


def have_other_words(turn: str, other: str) -> bool:
    """Whether two turns differ in a content word, or in the order of their content words and numbers."""
    return not have_equal_content(turn, other) or are_reordered(turn, other)


def have_equal_facts(ours: Context, theirs: Context, are_alike: Callable[[str, str], bool]) -> bool:
    """Whether the facts of two conversations agree, and both have the same statements (see `earlier_statements`).

    One of them may have additional numbers, times, or names, but not both of them. A last turn that only reacts (*yes please*,
    *the second one*) requires equal answers before it. Turns with nearly equal words must not differ in a fact, and a statement
    of the users about themselves must occur in both conversations.
    """
    if _disagree(quantities(ours.text), quantities(theirs.text)):
        return False
    if _lacked_names(ours, theirs) and _lacked_names(theirs, ours):
        return False
    if len(ours.turns) == len(theirs.turns) == _NUM_TURNS_OF_ONE_TOPIC and _guards_veto(ours.turns[0], theirs.turns[0]):
        return False
    lasting = not (is_standalone(ours.last) and is_standalone(theirs.last))
    if not all(_repeats_statements(*pair, lasting=lasting) for pair in ((ours, theirs), (theirs, ours))):
        return False
    is_reaction = not (asks(ours.last) and asks(theirs.last))
    if is_reaction and text_digest(ours.turns[-2]) != text_digest(theirs.turns[-2]):
        return False
    for one, other in ((ours, theirs), (theirs, ours)):
        if any(_states_own_fact(sentence) for sentence in _sentences(one, other, covered=False)):
            return False
    if _have_other_results(ours, theirs) or exchange_roles(
        *("\n".join(each.user_turns[:-1]) for each in (ours, theirs))
    ):
        return False
    if _replies_differ(ours, theirs):
        return False
    return not any(
        _copies_differ(turn, copy, are_alike, is_strict=is_strict or is_reaction)
        for turn, copy, is_strict in _near_copies(ours, theirs)
    )


def _have_other_results(ours: Context, theirs: Context) -> bool:
    """Whether the answers to an equal question of the users about their own case have little in common."""
    answers = {text_digest(turn): reply for turn, reply in _own_questions(theirs)}
    return any(
        not _agree(reply, answers[text_digest(turn)])
        for turn, reply in _own_questions(ours)
        if text_digest(turn) in answers
    )


def _agree(answer: str, other: str) -> bool:
    if content_words(answer) or content_words(other):
        return _have_common_content(answer, other)
    return not negation_differs(answer, other)  # `Yes, it is.` and `Yes.`


def _own_questions(context: Context) -> Iterator[tuple[str, str]]:
    """Yield questions such as `What does my scan say?`, and their answers."""
    pairs = zip(context.turns[:-1:2], context.turns[1::2], strict=True)
    return ((turn, reply) for turn, reply in pairs if is_question(turn) and _OWN_THING.search(turn))


def _settled_questions(context: Context) -> set[str]:
    """Return questions between the first topic and the latest one, to neither of which a last turn refers."""
    turns = [turn for turn in context.user_turns[:-1] if any(map(has_content, SENTENCE_END.split(turn)))]
    return {turn for turn in turns[1:-1] if is_question(turn) and not states_facts(turn) and "if" not in words(turn)}


def _guards_veto(turn: str, other: str) -> bool:
    """Whether guards distinguish two questions, to which the last turns probably refer."""
    if not (is_question(turn) and is_question(other)):
        return False
    return any(guard.vetoes(turn, other) for guard in GUARDS)


def _repeats_statements(ours: Context, theirs: Context, *, lasting: bool) -> bool:
    """Whether our earlier turns repeat their statements, at least in part if they are about the user."""
    # A question of the assistant may have the words of each possible reply.
    answers = (each for turn in ours.turns[1::2] for each in SENTENCE_END.split(turn) if not each.endswith("?"))
    known = roots_of(" ".join((*ours.user_turns[:-1], *answers)))
    return all(
        _repeats(ours, known, statement, is_by_user=not any(statement in turn for turn in theirs.turns[1::2]))
        for told in earlier_statements(theirs.turns, lasting=lasting)
        for statement in _JOKE_END.split(told)
        if not _JOKING.search(statement)
    )


def _repeats(ours: Context, known: frozenset[str], statement: str, *, is_by_user: bool) -> bool:
    """Whether the `known` roots of our earlier turns have enough of a statement's words."""
    content = content_words(statement)
    if not is_by_user:
        content = content - _PASSING or content
    if not content:
        return text_digest(statement) in map(text_digest, ours.user_turns)
    share = 1 - len(unknown_words(content, known)) / len(content)
    if is_by_user:
        return share == 1 or (
            share >= _COVERED and _has_equal_case(ours, statement) and not _lacks_fact(known, statement)
        )
    is_about_user = not _ABOUT_USER.isdisjoint(words(statement))
    return share == 1 or (is_about_user and share >= _NEARLY_COVERED and not _replaces_words(ours, statement))


def _lacks_fact(known: frozenset[str], statement: str) -> bool:
    """Whether words are unknown in a sentence that is not about the user, beside one that is."""
    return any(
        unknown_words(content_words(sentence), known)
        for sentence in SENTENCE_END.split(statement)
        if not is_own_case(without_report(sentence))
    )


def _has_equal_case(ours: Context, statement: str) -> bool:
    """Whether a statement of users about themselves has the same polarity and the same subjects as our most similar one."""
    if not is_own_case(without_report(statement)) or is_question(statement):
        return False
    nearest = _nearest(statement, ours.user_turns[:-1])
    return not negation_differs(statement, nearest) and not subjects_differ(statement, nearest)


def _replaces_words(ours: Context, statement: str) -> bool:
    """Whether our assistant's most similar sentence has other words, rather than less words, than a statement."""
    nearest = _nearest(statement, ours.turns[1::2])
    return bool(unknown_words(content_words(nearest) - _PASSING, roots_of(statement)))


def _nearest(statement: str, turns: Sequence[str]) -> str:
    """Return the sentence of some turns that has the most content words in common with a statement."""
    known = roots_of(statement)
    sentences = [sentence for turn in turns for sentence in SENTENCE_END.split(turn)]
    return max(
        sentences, key=lambda each: len(content_words(each)) - 2 * len(unknown_words(content_words(each), known))
    )


def shared_wording(ours: Context, theirs: Context) -> tuple[str, str]:
    """Return the sentences of the users, without those that have little in common with the other conversation."""
    return " ".join(_sentences(ours, theirs)), " ".join(_sentences(theirs, ours))


def share_sentences(ours: Context, theirs: Context) -> bool:
    """Whether nearly all sentences of the users that have much in common with the other conversation are equal."""
    one, other = ({*map(text_digest, _sentences(*pair))} for pair in ((ours, theirs), (theirs, ours)))
    return len(one & other) >= _EQUAL_SHARE * len(one | other) > 0


def words_only_in(stored: Context, asked: Context) -> frozenset[str]:
    """Return names, numbers, and the user's content words in a stored conversation that the other conversation lacks."""
    numbers = answer_facts(stored.earlier_text).numbers - answer_facts(asked.text).numbers
    content = content_words(" ".join(stored.user_turns[:-1]))
    known = roots_of(asked.text) | roots_of(stored.last)
    words_of_user = {word for word in unknown_words(content, known) if len(word) > _MIN_LENGTH_OF_WORD}
    names = unknown_words(frozenset(_lacked_names(stored, asked)), known)
    return frozenset(names | words_of_user | {number for number in numbers if len(number) > 1})


def uses_words(answer: str, own_words: frozenset[str]) -> bool:
    return bool(own_words) and not own_words.isdisjoint({*words(answer), *answer_facts(answer).numbers})


def _disagree(ours: frozenset[str], theirs: frozenset[str]) -> bool:
    return bool(ours - theirs and theirs - ours)


def _lacked_names(ours: Context, theirs: Context) -> set[str]:
    known, others = roots_of(theirs.text), set(words(theirs.text))
    names = {name for turn in ours.turns for name in names_of(turn)}
    return {
        name
        for name in unknown_words(frozenset(names), known)
        if len(name) <= _MIN_LENGTH_OF_PREFIX
        or not any(word.startswith(name[:_MIN_LENGTH_OF_PREFIX]) for word in others)
    }


def _sentences(context: Context, other: Context, *, covered: bool = True) -> list[str]:
    known = roots_of(other.text)
    return [
        sentence
        for turn in context.user_turns
        for sentence in SENTENCE_END.split(turn if _JOKING.search(turn) else without_fillers(turn))
        if (content := content_words(sentence))
        and (1 - len(unknown_words(content, known)) / len(content) >= _COVERED) is covered
    ]


def _states_own_fact(sentence: str) -> bool:
    return not is_question(sentence) and _OWN_FACT.search(sentence) is not None and _JOKING.search(sentence) is None


def _near_copies(ours: Context, theirs: Context) -> Iterator[tuple[str, str, bool]]:
    """Yield turns of one role with nearly equal words or much common content, and whether any other word is a difference."""
    settled, also_settled = _settled_questions(ours), _settled_questions(theirs)
    for first in (0, 1):
        others = {turn: words(turn) for turn in theirs.turns[first:-1:2]}
        for turn in ours.turns[first:-1:2]:
            copy = _nearest_copy(words(turn), others)
            if copy is not None:
                if turn != copy:
                    yield turn, copy, first == 0 and not (turn in settled and copy in also_settled)
            elif first == 0:
                related = [other for other in others if _have_common_content(turn, other)]
                strict = [other for other in related if not (turn in settled and other in also_settled)]
                yield from ((turn, other, True) for other in strict if len(content_words(turn)) <= _FEW_WORDS)
                yield from ((turn, other, False) for other in related if _are_rearranged(turn, other))


def _are_rearranged(turn: str, other: str) -> bool:
    """Whether nearly all content words are common, so that only their order or a small word makes a difference."""
    alone, also_alone = (
        unknown_words(content_words(turn), roots_of(other)),
        unknown_words(content_words(other), roots_of(turn)),
    )
    return len(alone) + len(also_alone) <= 2


def _have_common_content(turn: str, other: str) -> bool:
    pairs = ((content_words(turn), roots_of(other)), (content_words(other), roots_of(turn)))
    return all(content and len(unknown_words(content, known)) <= _COVERED * len(content) for content, known in pairs)


@lru_cache(maxsize=1024)
def _without_pleasantries(turn: str) -> str:
    kept = " ".join(each for each in SENTENCE_END.split(turn) if not is_pleasantry(each))
    return without_fillers(_PLEASANTRY.sub("", kept))


def _copies_differ(turn: str, copy: str, are_alike: Callable[[str, str], bool], *, is_strict: bool) -> bool:
    turn, copy = _without_pleasantries(turn), _without_pleasantries(copy)
    if not (is_question(turn) or is_question(copy)):
        turn, copy = _THIS_DAY.sub("", turn), _THIS_DAY.sub("", copy)
    if len(turn.encode()) > _MAX_TURN_BYTES or any(guard.vetoes(turn, copy) for guard in GUARDS):
        return True
    alone, also_alone = (
        unknown_words(content_words(turn), roots_of(copy)),
        unknown_words(content_words(copy), roots_of(turn)),
    )
    if not is_question(turn) and subjects_differ(turn, copy):
        return True
    statements, copied = (" ".join(statements_of(each)) for each in (turn, copy))
    if have_equal_content(statements, copied) and are_reordered(statements, copied):
        return True
    if not (alone and also_alone) and replace_repeated_words(statements, copied):
        return True
    if not alone and not also_alone and not is_question(turn):
        return are_reordered(turn, copy)
    if not is_question(turn) and describes_user(turn) and (alone | also_alone) - _PASSING:
        return True
    if not (is_strict and alone and also_alone):
        return False
    return not (is_question(turn) and is_question(copy) and are_alike(turn, copy))


def _replies_differ(ours: Context, theirs: Context) -> bool:
    """Whether a statement of our assistant replaces or exchanges words of a nearly equal one.

    Examples: `It is in Leeds.` and `It is in Hull.`. Words from elsewhere in the other conversation replace nothing.
    """
    stated, also_stated = _assistant_statements(ours), _assistant_statements(theirs)
    known, also_known = _known_roots(ours), _known_roots(theirs)
    for sentence in stated.keys() - also_stated.keys():
        copy = _nearest_copy(words(sentence), also_stated)
        if copy is None:
            continue
        alone = unknown_words(content_words(sentence), also_known) - _PASSING
        also_alone = unknown_words(content_words(copy), known) - _PASSING
        if (alone and also_alone) or (have_equal_content(sentence, copy) and are_exchanged(sentence, copy)):
            return True
    replies, copies = ours.turns[1:-1:2], theirs.turns[1:-1:2]
    return _replies_in_one_word(ours, known, theirs, also_known) or any(
        have_equal_content(*pair) and are_exchanged(*pair) for pair in product(replies, copies) if pair[0] not in copies
    )


def _replies_in_one_word(ours: Context, known: frozenset[str], theirs: Context, also_known: frozenset[str]) -> bool:
    """Whether the latest replies are different single words, to which a last turn may refer: `By letter.` and `By fax.`"""
    if len(ours.turns) == 1 or len(theirs.turns) == 1 or (is_standalone(ours.last) and is_standalone(theirs.last)):
        return False
    word, other = (content_words(each.turns[-2]) - _PASSING for each in (ours, theirs))
    return len(word) == len(other) == 1 and bool(unknown_words(word, also_known) and unknown_words(other, known))


def _known_roots(context: Context) -> frozenset[str]:
    """Return the roots of the earlier turns' words, without those among which a question lets choose: `Leeds or Hull?`"""
    sentences = (each for turn in context.turns[:-1] for each in SENTENCE_END.split(turn))
    return roots_of(" ".join(each for each in sentences if "?" not in each or "or" not in words(each)))


def _assistant_statements(context: Context) -> dict[str, Sequence[str]]:
    """Return the statements of the assistant, and their words."""
    sentences = (each for turn in context.turns[1:-1:2] for each in SENTENCE_END.split(turn))
    return {each: words(each) for each in sentences if has_content(each) and not is_question(each)}


def _nearest_copy(tokens: Sequence[str], others: Mapping[str, Sequence[str]]) -> str | None:
    """Return the text with nearly equal words whose words are the most similar ones to some words, if any."""
    best, copy = _COPY_RATIO, None
    for other, other_tokens in others.items():
        matcher = SequenceMatcher(None, tokens, other_tokens, autojunk=False)
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
            best, copy = matcher.ratio(), other
    return copy
