"""Detects other function words around equal content words: another owner, tense, modal verb, quantifier, or time relation."""

import re
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from itertools import pairwise

from kvproxy.index.policies.guards.tenses import AUXILIARIES, count_tenses, is_past_form, verb_roots, verb_tenses_differ
from kvproxy.index.policies.guards.words import FUNCTION_WORDS, NUMBER_WORDS, TIMES, cached_by_text, words


def _groups(*lines: str) -> Mapping[str, str]:
    return {word: line.split()[0] for line in lines for word in line.split()}


_QUANTIFIERS = _groups(
    "all every each everyone everybody everything everywhere whole entire fully completely entirely wholly totally",
    "some several multiple any someone somebody something somewhere anyone anybody anything anywhere",
    "none nobody nothing nowhere",
    "most mostly majority",
    "partly partially",
    "many much numerous lots",
    "only just",
    "last latest newest recent final",
    "enough sufficient sufficiently",
    *"both one few minority half either neither first next previous almost hardly single excess shortage".split(),
)
_FREQUENCIES = _groups(
    "always", "sometimes occasionally", "often frequently usually normally generally", "rarely seldom", "never",
    "recently lately", "yearly annually annual", *"ever hourly daily weekly monthly quarterly".split(),
)  # fmt: skip
_PHASES = _groups("still anymore", "already yet", "again")
_ASPECTS = _groups("being", "been")
_CERTAINTY = _groups("will shall", "may might could")
_MODALS = _groups(
    "must mustn't obliged obligated required forced compelled necessary mandatory compulsory obligatory",
    "needless unnecessary",
    "can could may might cannot can't couldn't able capable allowed permitted possible optional entitled eligible",
    "should ought shouldn't supposed expected advised advisable recommended",
    "will shall would won't wouldn't willing",
)
_COMPATIBLE_MODALS = {"can", "will"}
_RELATIONS = _groups(
    "before beforehand",
    "after afterwards afterward",
    "until till",
    "during while throughout",
    *"since from within deadline ago".split(),
)
_ORDERS = frozenset("before after until".split())
_PREPOSITIONS = _groups("at", "on upon", "in", "over", "through")
_SUBJECTS = _groups("1 i me we us myself", "2 you yourself", "3 he him she they them himself herself themselves")
_OWNERS = _groups(
    "1 my mine our ours", "2 your yours", "3 their theirs someone's somebody's else's", "its", "his", "her hers"
)
_THIRD_PERSONS = {"3", "its", "his", "her"}
_NO_OWNERS = TIMES | FUNCTION_WORDS | {"one"}
_TABLES = (_QUANTIFIERS, _FREQUENCIES, _ASPECTS, _RELATIONS, _CERTAINTY, _PHASES)
_CLOSED = frozenset({"become"}).union(*_TABLES, _MODALS, _SUBJECTS, _OWNERS, AUXILIARIES)
_DETERMINER = "(?:the|my|your|his|her|its|our|their|an?|this|that)"
_SUBJECT = r"(?:(?!not\b)[\w']+ ){1,4}?"
_PHRASES = tuple(
    (keyword, re.compile(pattern), replacement)
    for keyword, pattern, replacement in (
        ("'m", r"'m\b", " am"),
        ("'re", r"'re\b", " are"),
        ("'ve", r"'ve\b", " have"),
        ("'ll", r"'ll\b", " will"),
        ("'s", r"\b(it|that|there|what|who|where|when|how|why|he|she)'s\b", r"\1 is"),
        (" you", r"\b(?:can|could|will|would) you\b", "can you"),
        ("look", r"\blook(s|ed|ing)? after\b", r"tend\1"),
        ("'s ", r"\b(\w+)'s (?=(?:\w+ing|not|also|already|still)\b)", r"\1 is "),
        ("'s been", r"\b(\w+)'s been\b", r"\1 has been"),
        ("s' ", r"(?<=\w)s' (?=\w)", "s's "),
        ("got ", r"(?<!have )(?<!has )\bgot (?=\w+ed\b)", "was "),
        (" got", r"\b(have|has) ((?:\w+ )?)got\b", r"\1 \2"),
        ("prior to", r"\bprior to\b", "before"),
        ("ahead of", r"\bahead of\b", "before"),
        ("in advance", r"\bin advance(?: of)?\b", "before"),
        ("following", r"(?<!the )\bfollowing ", "after "),
        ("once ", r"\bonce (?=i|you|we|they|he|she|it|the)\b", "after "),
        ("as soon as", r"\bas soon as\b", "after "),
        # `after it has shipped` has no tense of its own: `after shipping`.
        (
            "after ",
            rf"\bafter ((?:{_DETERMINER} )?(?!while)\w+) (?:has|have) (?=(?:been )?\w+(?:ed|en)\b)",
            r"after \1 ",
        ),
        (" to", r"\b(?:have|has|had|need|needs|got) to\b", "must"),
        ("need", r"\bneed(?= (?:i|you|we|they|he|she|it|the)\b)", "must"),
        ("need", r"\bneed(?:n't|s? not)\b", "needless"),
        ("n't must", r"\b(?:do|does|did)n't must\b", "needless"),
        ("do", rf"\b(?:do|does) ({_SUBJECT})(?:need|must)\b", r"must \1"),
        (" to", rf"\b(?:am|is|are) ({_SUBJECT})?(?:going|about) to\b", r"will \1"),
        ("becoming", rf"\b(?:am|is|are) ({_SUBJECT})?becoming\b", r"will \1become"),
        ("use to", rf"\bdid ({_SUBJECT})use to\b", r"did \1"),
        ("used to", r"(?<!\bis )(?<!\bare )(?<!\bbe )(?<!\bam )\bused to\b", "did"),
        ("too ", r"\btoo (?:many|much)\b", "excess"),
        ("too ", r"\btoo (?:few|little)\b", "shortage"),
        ("a little", r"\ba little\b", "some"),
        (" when", r"(?<=\w )(?<!and )(?<!or )when(?= (?:i|you|we|they|he|she|it|the|my|your)\b)", "after while"),
        ("no one", r"\bno one\b", "nobody"),
        ("at least one", r"\bat least one\b", "several"),
        ("more than", r"\bmore than (?:one|a)\b", "several"),
        ("a few", r"\ba few\b", "several"),
        ("a lot of", r"\ba lot of\b", "several"),
        ("a couple of", r"\ba couple of\b", "several"),
        ("part", r"\b(?:a )?parts? of\b", "partly"),
        ("by ", rf"\bby (?=\d|the (?:time|end)\b|(?:{'|'.join(sorted(TIMES | NUMBER_WORDS.keys()))})\b)", "deadline "),
        *(
            (
                person,
                rf"^(\W*(?:how|why|what|where)\b.*?\b(?:can|does|do|should|would|could|must)) {person}\b",
                r"\1 i",
            )
            for person in ("one", "someone", "somebody", "a person")
        ),
    )
)  # fmt: skip
_FORMER_HABIT = re.compile(r"\b(?:i|you|he|she|we|they) used to\b", re.IGNORECASE)
_CHOICE = re.compile(
    r"^\W*(how|what|where|when|which|who|why)\b"
    r"(?: (often|long|much|many|soon|late|early|far|old|big|high|deep|tall|fast|large|heavy)\b)?"
)
# After these, `can`, `should`, and `do` mostly ask for the same: `where can I park`, `what should I bring`.
_ADVICE = frozenset("how what where which why".split())
_MEASURES = frozenset("how long much".split())
_MAX_OTHER_WORDS = 1
_ROOT, _SLACK = 3, 2  # Irregular verbs, and words of phrases, have other first letters.


@dataclass(frozen=True, slots=True)
class _Grammar:
    """The function words of a question, by group, and the rest of its words."""

    tokens: tuple[str, ...]
    groups: tuple[Counter[str], ...]
    tenses: Counter[str]
    modals: frozenset[str]
    subjects: Counter[str]
    owners: Counter[str]
    owned: Mapping[str, str]
    times: Mapping[str, str]
    content: tuple[str, ...]
    question_word: str


def grammar_differs(question: str, cached_question: str) -> bool:
    """Whether equal content words stand with other function words: `is it open` and `was it open`, `my bill`, `your bill`."""
    if _have_other_content(question, cached_question):
        return False
    ours, theirs = _grammar(question), _grammar(cached_question)
    others = max(_other_words(ours, theirs), _other_words(theirs, ours))
    if ours.tokens == theirs.tokens or others > _MAX_OTHER_WORDS:
        return False
    return (
        any(_exclude_each_other(*pair) for pair in zip(ours.groups, theirs.groups, strict=True))
        or _persons_differ(ours, theirs)
        or _times_differ(ours, theirs)
        or _numbers_differ(ours.tokens, theirs.tokens)
        or _modals_differ(ours, theirs)
        or (others == 0 and (_tenses_differ(ours, theirs) or _habits_differ(question, cached_question)))
    )


@cached_by_text
def _grammar(text: str) -> _Grammar:
    plain = text.lower().replace("’", "'")
    for keyword, pattern, word in _PHRASES:
        if keyword in plain:
            plain = pattern.sub(word, plain)
    tokens = words(plain)
    choice = _CHOICE.search(text.lower())
    return _Grammar(
        tokens,
        tuple(Counter(table[word] for word in tokens if word in table) for table in _TABLES),
        count_tenses(tokens),
        frozenset(_MODALS[word] for word in tokens if word in _MODALS),
        Counter(_SUBJECTS[word] for word in tokens if word in _SUBJECTS) + _objects(tokens),
        Counter(filter(None, map(_owner, tokens))),
        {noun: owner for word, noun in pairwise(tokens) if (owner := _owner(word))},
        _times(tokens),
        tuple(word for word in tokens if word not in FUNCTION_WORDS and word not in _CLOSED),
        "" if choice is None else choice[2] or choice[1],
    )


def _owner(word: str) -> str | None:
    noun = word.removesuffix("'s")
    return _OWNERS.get(word) or ("3" if noun != word and noun not in _NO_OWNERS else None)


def _objects(tokens: tuple[str, ...]) -> Counter[str]:
    """Count each `her` that is no owner: `sent to her`."""
    return Counter("3" for word, later in pairwise((*tokens, "a")) if word == "her" and later in FUNCTION_WORDS)


def _have_other_content(question: str, cached_question: str) -> bool:
    """Whether many words have no counterpart: a fast check of their first letters, before phrases are replaced."""
    (content, known), (other_content, other_known) = _first_letters(question), _first_letters(cached_question)
    return max(len(content - other_known), len(other_content - known)) > _MAX_OTHER_WORDS + _SLACK


@cached_by_text
def _first_letters(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the first letters of the content words, and of all words."""
    tokens = words(text)
    content = (word[:_ROOT] for word in tokens if word not in FUNCTION_WORDS and word not in _CLOSED)
    return frozenset(content), frozenset(word[:_ROOT] for word in tokens)


def _other_words(ours: _Grammar, theirs: _Grammar) -> int:
    known = {root for word in theirs.tokens for root in verb_roots(word)}
    return sum(known.isdisjoint(verb_roots(word)) for word in ours.content)


def _exclude_each_other(ours: Counter[str], theirs: Counter[str]) -> bool:
    return bool(ours - theirs and theirs - ours)


def _tenses_differ(ours: _Grammar, theirs: _Grammar) -> bool:
    one, other = ours.tenses - theirs.tenses, theirs.tenses - ours.tenses
    if one.keys() | other.keys() == {"present", "future"} and {ours.question_word, theirs.question_word} & _MEASURES:
        return False  # `How long will it take` and `how long does it take` ask for the same.
    return bool(one and other) or verb_tenses_differ(ours.tokens, theirs.tokens)


def _habits_differ(question: str, cached_question: str) -> bool:
    """Whether only one text is about a former habit: `I used to smoke`, `I smoke`."""
    former = [_FORMER_HABIT.search(text) is not None for text in (question, cached_question)]
    return any(former) and not all(former) and not all(map(_is_past, (question, cached_question)))


def _is_past(text: str) -> bool:
    grammar = _grammar(text)
    return "past" in grammar.tenses or any(map(is_past_form, grammar.tokens))


def _numbers_differ(ours: tuple[str, ...], theirs: tuple[str, ...]) -> bool:
    """Whether one text asks for several things, and the other for one: `several visas`, `a visa`."""
    one, other = set(ours) - set(theirs), set(theirs) - set(ours)
    return any(
        alone & {"several", "multiple", "many"} and others & {"a", "an", "one", "single"}
        for alone, others in ((one, other), (other, one))
    )


def _modals_differ(ours: _Grammar, theirs: _Grammar) -> bool:
    one, other = ours.modals - theirs.modals, theirs.modals - ours.modals
    is_about_others = not {*ours.subjects, *theirs.subjects} & {"1", "2"}
    question_words = {ours.question_word, theirs.question_word} - {""}
    if {ours.modals, theirs.modals} == {frozenset(), frozenset({"should"})}:
        return is_about_others and not question_words
    if not one or not other or (one | other == _COMPATIBLE_MODALS and (not is_about_others or "why" in question_words)):
        return False
    if is_about_others:
        return True
    if question_words & {"how", "why"} or (question_words == {"who"} and "1" in ours.subjects & theirs.subjects):
        return False
    return not question_words & _ADVICE or {"must", "can"} <= one | other


def _persons_differ(ours: _Grammar, theirs: _Grammar) -> bool:
    if ours.owned.keys() == theirs.owned.keys() and ours.owners == theirs.owners and ours.owned != theirs.owned:
        return True  # `my visa .. his trip` and `his visa .. my trip`
    owners, other_owners = ours.owners - theirs.owners, theirs.owners - ours.owners
    changed = {*owners, *other_owners}
    if any(_exclude_owners(ours.owned[noun], theirs.owned[noun]) for noun in ours.owned.keys() & theirs.owned.keys()):
        return True
    if owners and other_owners and not _are_alike(changed):
        return ours.subjects == theirs.subjects or not changed.isdisjoint(_THIRD_PERSONS)
    subjects, other_subjects = ours.subjects - theirs.subjects, theirs.subjects - ours.subjects
    return bool(subjects and other_subjects) and "3" in {*subjects, *other_subjects}


def _exclude_owners(one: str, other: str) -> bool:
    return one != other and not _are_alike({one, other}) and not _THIRD_PERSONS.isdisjoint({one, other})


def _are_alike(owners: Set[str]) -> bool:
    """Whether owners can be one person: `their` is used for `his`, `her`, and `its`."""
    return len(owners) == 2 and "3" in owners and owners <= _THIRD_PERSONS


def _times_differ(ours: _Grammar, theirs: _Grammar) -> bool:
    """Whether a word follows another time relation: `before midnight` and `at midnight`."""
    pairs = ({ours.times[word], theirs.times[word]} for word in ours.times.keys() & theirs.times.keys())
    return any(len(pair) == 2 and bool(pair & _ORDERS) and pair != {"after", "on"} for pair in pairs)


def _times(tokens: tuple[str, ...]) -> Mapping[str, str]:
    """Map content words to the preposition or conjunction before them."""
    times: dict[str, str] = {}
    relation = ""
    for word in tokens:
        if word in _RELATIONS or word in _PREPOSITIONS:
            relation = "" if relation else _RELATIONS.get(word) or _PREPOSITIONS[word]
        elif word not in FUNCTION_WORDS:
            if relation:
                times[word] = relation
            relation = ""
    return times
