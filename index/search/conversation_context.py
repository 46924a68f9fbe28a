"""Decides whether the earlier turns of two conversations, which were held independently, call for the same answer.

Turns alternate between the user and the assistant, and begin with the user. All functions compare two conversations in both
directions, because one may state a fact that the other lacks.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.guards.fillers import without_fillers
from kvproxy.index.policies.guards.question_and_format import named_times
from kvproxy.index.policies.guards.words import FUNCTION_WORDS, NUMBER, WORD, cached_by_text, roots, words
from kvproxy.index.policies.learned.answer_classes import text_digest
from kvproxy.index.policies.learned.answer_facts import answer_facts
from kvproxy.index.search.earlier_statements import (
    SENTENCE_END,
    earlier_statements,
    is_own_case,
    is_pleasantry,
    is_question,
)

MAX_TURNS_OF_FREE_WORDING = 15
_MAX_TURN_BYTES = 800
_REFERENCES = frozenset(
    "it its it's this these those they them their they're he him his she her hers there then else another again ones former"
    " latter both either neither so here other others such that's".split()
)
_QUANTIFIERS = frozenset("each every all any some many much more most".split())
_OWN = frozenset("my mine our ours i'm i've i'd i'll am myself".split())
_CONTINUATION = re.compile(
    r"^\W*(?:and|but|so|then|or|ok|okay|also|what about|how about|no|yes|yeah|yep|sure|right|cool|great|thanks|because|well|now"
    r"|actually|wait)\b",
    re.IGNORECASE,
)
_ASKS = (
    r"(?:how|what|what's|where|when|which|who|why|(?:is|are|does|did|can|could|may|should|will|would|has|have)"
    r"|do(?= (?:i|you|we|they|the|a|an|my|your|our|people|all|any)\b)|explain|describe|tell|list|give|show|name|define)\b"
)
_QUESTION = re.compile(rf"^\W*{_ASKS}", re.IGNORECASE)
_LATER_QUESTION = re.compile(
    rf"^\W*(?:(?:and|but|so|ok|okay|well|also|right|done|yes|no)[,. ]+)*{_ASKS}", re.IGNORECASE
)
_DEMONSTRATIVE = re.compile(
    r"\bthat\b(?! (?:i|you|we|they|he|she|it|is|are|can|was|were|has|have|do|does)\b)", re.IGNORECASE
)
_OWN_STATE = re.compile(
    r"\b(?:(?:have|did|was|am|will) i|(?<!how do )i (?:have|was|did|need|get)|do i (?:still|now))\b", re.IGNORECASE
)
_COMPARATIVE = re.compile(r"\binstead of\b|\bat the same time\b|\b(?:to|from) another\b", re.IGNORECASE)
_TOKEN = re.compile(r"[\w'’-]+|[^\w\s]")
_WORD_OR_NUMBER = re.compile(rf"{WORD.pattern}|{NUMBER.pattern}")
_COMPLEMENTS = frozenset("of for to in at from between on with about than".split())
_MAX_COMPLEMENT_DISTANCE = 5
_NO_REFERENCES = tuple(
    re.compile(expression, re.IGNORECASE)
    for expression in (
        _COMPARATIVE.pattern,
        r"(?<=\b(?:is|re)) there\b",
        r"\bthis (?=(?:year|month|week|weekend|season|summer|winter|spring|autumn)\b)",
        r"\bthe (?=(?:world|universe|solar system|internet|moon|sun|earth|horizon|sky)\b)",
    )
)
_COMPLEMENT = re.compile(r"\b(?:for|in|on|from|to|with|between) (?:your )?[a-z]+\W*$", re.IGNORECASE)
_LATER_CLAUSE = re.compile(r", or \w+ (?:i|you|we|people|they|it|he|she)\b.*", re.IGNORECASE)
_MIN_WORDS, _MIN_WORDS_WITH_COMPLEMENT, _MIN_WORDS_WITH_NAME = 4, 3, 2
_SMALL_TALK = frozenset(
    "hi hello hey hiya thanks thank cheers great ok okay yes no yep yeah sure lol haha nice cool perfect brilliant sorry please"
    " good morning afternoon evening hope day well done".split()
)
_JOKING = re.compile(r"\b(?:lol|haha|hope|unrelated|random)\b", re.IGNORECASE)
_OWN_FACT = re.compile(
    r"\b(?:(?:i|we)(?:'ve| have)? (?:already |only |also )?(?:have|need|use|live|work|own|rent|pay|paid|sign|signed|bought"
    r"|ordered|booked|got|can't|cannot|don't|didn't|do not|did not|never)"
    r"|(?:i'm|i am|we're|we are) (?!more|so\b|just|really|sure|afraid|wondering|curious|sorry|glad|happy|nervous|excited|trying"
    r"|thinking|looking)|my \w+(?:'s| is| are| has) (?!thinking|looking|wondering|asking))",
    re.IGNORECASE,
)
_PRONOUN = re.compile(
    r"\b(?:that|this|these|those|them|they)\b(?=\W*$|\s*[?.,!]|\s+(?:up|on|off|out|in|down|back|now|for|to|at|by|with|again)\b)",
    re.IGNORECASE,
)
_PLEASANTRY = re.compile(
    r"^\W*(?:(?:oh )?no (?:worries|problem|rush)|oh no|not (?:at all|an? \w+ question)|never mind)\b(?: at all)?[\s,.!;]*"
    r"|(?<=[,.!] )no (?:worries|problem|rush)[\s,.!;]+",
    re.IGNORECASE,
)
# Words with which an assistant introduces a fact, as in `I found this: ..`.
_REPORTS = frozenset(
    "thank see find found look looked check checked read heard know known note notes say says here following".split()
)
_COVERED, _EQUAL_SHARE = 0.5, 0.8
_COPY_RATIO = 0.62
_FEW_WORDS = 4
_MIN_WORDS_OF_ORDER = 3
_NUM_TURNS_OF_ONE_TOPIC = 3
_MIN_LENGTH_OF_PREFIX, _MIN_LENGTH_OF_WORD = 4, 3


def is_standalone(question: str) -> bool:
    """Whether a question needs no earlier turns: it refers to nothing, is a whole sentence, and names what it is about."""
    if _CONTINUATION.search(question):
        return False
    text = without_fillers(question)
    for expression in _NO_REFERENCES:
        text = expression.sub("", text)
    tokens = set(words(text))
    # Pronouns of a later clause refer to the first one: `Are tickets mobile only, or can I print them?`
    if not _QUESTION.search(text) or not (_REFERENCES | _OWN).isdisjoint(words(_LATER_CLAUSE.sub("", text))):
        return False
    if _DEMONSTRATIVE.search(text) or _OWN_STATE.search(text) or not _all_definite_nouns_are_explained(text):
        return False
    content = {word for word in tokens if word not in FUNCTION_WORDS | _QUANTIFIERS and len(word) > 2}
    least = _MIN_WORDS_WITH_COMPLEMENT if _COMPLEMENT.search(text) else _MIN_WORDS
    return len(content) >= (_MIN_WORDS_WITH_NAME if _names(text) else least)


def _all_definite_nouns_are_explained(text: str) -> bool:
    tokens = _TOKEN.findall(text)
    for place, token in enumerate(tokens):
        if token.lower() != "the":
            continue
        for following in tokens[place + 1 : place + 1 + _MAX_COMPLEMENT_DISTANCE]:
            if following[0].isupper() or following.lower() in _COMPLEMENTS:
                break
            if not following[0].isalnum():
                return False
        else:
            return False
    return True


@cached_by_text
def _names(text: str) -> frozenset[str]:
    """Return words with a capital letter that do not begin a sentence, in lower case."""
    names = set[str]()
    for match in WORD.finditer(text):
        before = text[: match.start()].rstrip()
        if match.group()[0].isupper() and before and before[-1] not in ".?!:" and not match.group().startswith("I'"):
            names.add(match.group().lower().removesuffix("'s"))
    return frozenset(names - {"i"})


@lru_cache(maxsize=4096)
def _content(text: str) -> frozenset[str]:
    content_words = (word.removesuffix("'s") for word in words(text) if word.partition("'")[0] not in FUNCTION_WORDS)
    return frozenset(content_words) - FUNCTION_WORDS - _SMALL_TALK


@lru_cache(maxsize=1024)
def _roots(text: str) -> frozenset[str]:
    return frozenset(root for word in words(text) for root in roots(word.removesuffix("'s")))


def _unknown(candidates: frozenset[str], known: frozenset[str]) -> set[str]:
    return {word for word in candidates if known.isdisjoint(roots(word))}


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
    def text(self) -> str:
        return " ".join(self.turns)

    @property
    def earlier_text(self) -> str:
        return " ".join(self.turns[:-1])


def need_no_context(ours: Context, theirs: Context, are_alike: Callable[[str, str], bool]) -> bool:
    """Whether both last turns are standalone, and the earlier turns have statements of the same meaning, or none."""
    if not (is_standalone(ours.last) and is_standalone(theirs.last)):
        return False
    statements, their_statements = earlier_statements(ours.turns), earlier_statements(theirs.turns)
    return len(statements) == len(their_statements) and all(map(are_alike, statements, their_statements))


def have_other_words(turn: str, other: str) -> bool:
    """Whether two turns differ in a content word, or in the order of their content words and numbers."""
    if _unknown(_content(turn), _roots(other)) or _unknown(_content(other), _roots(turn)):
        return True
    return _are_reordered(turn, other)


def _are_reordered(turn: str, other: str) -> bool:
    """Whether at least three content words or numbers have another order, so that two of them may have exchanged their roles."""
    ours, theirs = _content_in_order(turn), _content_in_order(other)
    if max(len(ours), len(theirs)) < _MIN_WORDS_OF_ORDER:
        return False
    return len(ours) != len(theirs) or any(map(frozenset.isdisjoint, ours, theirs))


def _content_in_order(text: str) -> list[frozenset[str]]:
    """Return the roots of each content word, and each number, in their order."""
    tokens = (token.lower().replace("’", "'").removesuffix("'s") for token in _WORD_OR_NUMBER.findall(text))
    content = _content(text)
    return [roots(token) for token in tokens if token in content or token[0].isdigit()]


def have_equal_facts(ours: Context, theirs: Context, are_alike: Callable[[str, str], bool]) -> bool:
    """Whether the facts of two conversations agree, and both have the same statements (see `earlier_statements`).

    One of them may have additional numbers, times, or names, but not both of them. A last turn that only reacts (*yes please*,
    *the second one*) requires equal answers before it. Turns with nearly equal words must not differ in a fact, and a statement
    of the users about themselves must occur in both conversations.
    """
    if _disagree(_quantities(ours.text), _quantities(theirs.text)):
        return False
    if _lacked_names(ours, theirs) and _lacked_names(theirs, ours):
        return False
    if len(ours.turns) == len(theirs.turns) == _NUM_TURNS_OF_ONE_TOPIC and _guards_veto(ours.turns[0], theirs.turns[0]):
        return False
    lasting = not (is_standalone(ours.last) and is_standalone(theirs.last))
    if not all(_repeats_statements(*pair, lasting=lasting) for pair in ((ours, theirs), (theirs, ours))):
        return False
    is_reaction = not (_asks(ours.last) and _asks(theirs.last))
    if is_reaction and text_digest(ours.turns[-2]) != text_digest(theirs.turns[-2]):
        return False
    for one, other in ((ours, theirs), (theirs, ours)):
        if any(_states_own_fact(sentence) for sentence in _sentences(one, other, covered=False)):
            return False
    return not any(
        _copies_differ(turn, copy, are_alike, is_strict=is_strict or is_reaction)
        for turn, copy, is_strict in _near_copies(ours, theirs)
    )


def _guards_veto(turn: str, other: str) -> bool:
    """Whether guards distinguish two questions, to which the last turns probably refer."""
    if not (is_question(turn) and is_question(other)):
        return False
    return any(guard.vetoes(turn, other) for guard in GUARDS)


def _repeats_statements(ours: Context, theirs: Context, *, lasting: bool) -> bool:
    """Whether our earlier turns repeat their statements, at least in part if they are about the user."""
    # A question of the assistant may have the words of each possible reply.
    answers = (each for turn in ours.turns[1::2] for each in SENTENCE_END.split(turn) if not each.endswith("?"))
    known = _roots(" ".join((*ours.user_turns[:-1], *answers)))
    return all(
        _repeats(ours, known, statement, is_by_user=not any(statement in turn for turn in theirs.turns[1::2]))
        for statement in earlier_statements(theirs.turns, lasting=lasting)
        if not _JOKING.search(statement)
    )


def _repeats(ours: Context, known: frozenset[str], statement: str, *, is_by_user: bool) -> bool:
    """Whether the `known` roots of our earlier turns have enough of a statement's words."""
    content = _content(statement)
    if not is_by_user:
        content = content - _REPORTS or content
    if not content:
        return text_digest(statement) in map(text_digest, ours.user_turns)
    least = _COVERED if is_by_user and is_own_case(statement) and not is_question(statement) else 1
    return len(content) - len(_unknown(content, known)) >= least * len(content)


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
    content = _content(" ".join(stored.user_turns[:-1]))
    known = _roots(asked.text) | _roots(stored.last)
    words_of_user = {word for word in _unknown(content, known) if len(word) > _MIN_LENGTH_OF_WORD}
    names = _unknown(frozenset(_lacked_names(stored, asked)), known)
    return frozenset(names | words_of_user | {number for number in numbers if len(number) > 1})


def uses_words(answer: str, own_words: frozenset[str]) -> bool:
    return bool(own_words) and not own_words.isdisjoint({*words(answer), *answer_facts(answer).numbers})


def _disagree(ours: frozenset[str], theirs: frozenset[str]) -> bool:
    return bool(ours - theirs and theirs - ours)


@lru_cache(maxsize=256)
def _quantities(text: str) -> frozenset[str]:
    return answer_facts(text).numbers | named_times(text)


def _lacked_names(ours: Context, theirs: Context) -> set[str]:
    known, others = _roots(theirs.text), set(words(theirs.text))
    names = {name for turn in ours.turns for name in _names(turn)}
    return {
        name
        for name in _unknown(frozenset(names), known)
        if len(name) <= _MIN_LENGTH_OF_PREFIX
        or not any(word.startswith(name[:_MIN_LENGTH_OF_PREFIX]) for word in others)
    }


def _asks(turn: str) -> bool:
    return "?" in turn or _LATER_QUESTION.search(turn) is not None


def _sentences(context: Context, other: Context, *, covered: bool = True) -> list[str]:
    known = _roots(other.text)
    return [
        sentence
        for turn in context.user_turns
        for sentence in SENTENCE_END.split(turn if _JOKING.search(turn) else without_fillers(turn))
        if (content := _content(sentence)) and (1 - len(_unknown(content, known)) / len(content) >= _COVERED) is covered
    ]


def neutral_references(question: str) -> str:
    """Return a last turn with `it` instead of other pronouns for things: `How do I set it up?` for `How do I set that up?`."""
    return _PRONOUN.sub("it", question)


def _states_own_fact(sentence: str) -> bool:
    return not is_question(sentence) and _OWN_FACT.search(sentence) is not None and _JOKING.search(sentence) is None


def _near_copies(ours: Context, theirs: Context) -> Iterator[tuple[str, str, bool]]:
    """Yield turns of one role with nearly equal words or much common content, and whether any other word is a difference."""
    for first in (0, 1):
        others = [(turn, words(turn)) for turn in theirs.turns[first:-1:2]]
        for turn in ours.turns[first:-1:2]:
            tokens = words(turn)
            best, copy = _COPY_RATIO, None
            for other, other_tokens in others:
                matcher = SequenceMatcher(None, tokens, other_tokens, autojunk=False)
                if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
                    best, copy = matcher.ratio(), other
            if copy is not None:
                if turn != copy:
                    yield turn, copy, first == 0
            elif first == 0:
                related = [other for other, _ in others if _have_common_content(turn, other)]
                yield from ((turn, other, True) for other in related if len(_content(turn)) <= _FEW_WORDS)
                yield from ((turn, other, False) for other in related if _are_rearranged(turn, other))


def _are_rearranged(turn: str, other: str) -> bool:
    """Whether nearly all content words are common, so that only their order or a small word makes a difference."""
    alone, also_alone = _unknown(_content(turn), _roots(other)), _unknown(_content(other), _roots(turn))
    return len(alone) + len(also_alone) <= 2


def _have_common_content(turn: str, other: str) -> bool:
    pairs = ((_content(turn), _roots(other)), (_content(other), _roots(turn)))
    return all(content and len(_unknown(content, known)) <= _COVERED * len(content) for content, known in pairs)


@lru_cache(maxsize=1024)
def _without_pleasantries(turn: str) -> str:
    return _PLEASANTRY.sub("", " ".join(each for each in SENTENCE_END.split(turn) if not is_pleasantry(each)))


def _copies_differ(turn: str, copy: str, are_alike: Callable[[str, str], bool], *, is_strict: bool) -> bool:
    turn, copy = _without_pleasantries(turn), _without_pleasantries(copy)
    if len(turn.encode()) > _MAX_TURN_BYTES or any(guard.vetoes(turn, copy) for guard in GUARDS):
        return True
    alone, also_alone = _unknown(_content(turn), _roots(copy)), _unknown(_content(copy), _roots(turn))
    if not alone and not also_alone and not is_question(turn):
        return _are_reordered(turn, copy)
    if not (is_strict and alone and also_alone):
        return False
    return not (is_question(turn) and is_question(copy) and are_alike(turn, copy))
