"""A guard against words that exchanged their roles."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from itertools import combinations, pairwise

from kvproxy.index.policies.guards.relations import roles_are_exchanged
from kvproxy.index.policies.guards.words import (
    FUNCTION_WORDS,
    NUMBER,
    REQUEST_VERBS,
    WORD,
    cached_by_text,
    roots,
    words,
)

_TOKEN = re.compile(rf"{WORD.pattern}|{NUMBER.pattern}|[,;:.?!](?=\s|$)")
_OWNER = re.compile(
    r"\b(?!(?:it|that|what|who|there|here|how|where|when|he|she|let)['’])(\w+)['’]s (\w+)", re.IGNORECASE
)
# A capital A inside a sentence is a name, as in `from A to B`.
_NAME_A = re.compile(r"(?<=\w )A\b")
_ARTICLES = frozenset("a an the my your his her its our their this that these those some any".split())
_PREPOSITIONS = {
    word: group.split()[0]
    for group in (
        "to into onto towards toward", "from", "in inside within", "on upon", "at", "of", "for", "with using", "by", "than",
        "over", "before", "after", "without", "as", "against", "per", "via through", "under", "behind", "instead",
    )
    for word in group.split()
}  # fmt: skip
_COORDINATION = frozenset("and or vs versus nor".split())
_NO_CONTENT = (FUNCTION_WORDS - REQUEST_VERBS) | _PREPOSITIONS.keys() | _COORDINATION
_MUST = re.compile(r"\b(?:have|has|had|needs?) to\b", re.IGNORECASE)
_MODAL_VERBS = frozenset("can could will would shall should may might must have has had not".split())
_PASSIVE_VERBS = frozenset("is are was were be been being am get gets got".split())
_BEFORE_INFINITIVE = frozenset(
    "how what where when whether way ways want need like have has try able possible going allowed easy easier hard best takes"
    " take better order required legal safe used cost long i we".split()
)
_VERBS = frozenset(
    "be get go do make use convert change turn translate send move visit enter travel fly drive switch migrate import export"
    " apply transfer connect pay buy learn play watch see give take bring copy work live study find beat write read".split()
)
_WEIGHTS = {"after": 2, "left": 1, "right": 1}
_DECISIVE = 2
_SENTENCE_ENDS = frozenset(".?!")
_MIN_SENTENCES, _MIN_MOVED_WORDS, _MAX_CHANGED_WORDS = 2, 2, 1
Role = tuple[str, str]  # ("after", preposition), or ("left" or "right", adjacent word)


def has_exchanged_words(question: str, cached_question: str) -> bool:
    """Whether two words exchanged their roles: `from Oslo to Rome` and `from Rome to Oslo`.

    A word's role is determined by its preposition, its adjacent words, and the other words of its sentence.
    """
    ours, theirs = _tokens(question), _tokens(cached_question)
    names = _map_by_common_root(theirs, ours)
    participles = {token for token in ours if _is_participle(token)}
    participles |= {names.get(token, token) for token in theirs if _is_participle(token)}
    theirs = tuple(names.get(token, token) for token in theirs)
    if _sentences_exchange_words(ours, theirs):
        return True
    heads = _common_heads(ours, theirs)
    ours, theirs = (tuple(token for token in tokens if token not in heads) for tokens in (ours, theirs))
    phrases = {phrase for phrase in _phrases(ours) & _phrases(theirs) if phrase[1] not in participles}
    ours, theirs = _join_phrases(ours, phrases), _join_phrases(theirs, phrases)
    one, other = _roles(ours, participles), _roles(theirs, participles)
    moved = [word for word, roles in one.items() if roles != other.get(word, roles)]
    return any(_are_exchanged(ours, theirs, one, other, pair) for pair in combinations(moved, 2)) or _is_reordered(
        ours, theirs
    )


def _sentences_exchange_words(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    """Whether sentences exchange content words: `Ann sells tea. Tom buys it.` and `Tom sells tea. Ann buys it.`"""
    one, other = _sentences(ours), _sentences(theirs)
    if min(len(one), len(other)) < _MIN_SENTENCES:
        return False
    words, other_words = (sum(sentences, Counter[str]()) for sentences in (one, other))
    common = words & other_words
    if max((words - common).total(), (other_words - common).total()) > _MAX_CHANGED_WORDS:
        return False
    return common.total() - min(_num_kept(one, other), _num_kept(other, one)) >= _MIN_MOVED_WORDS


def _sentences(tokens: Sequence[str]) -> list[Counter[str]]:
    """Return the content words of each sentence."""
    sentences = [Counter[str]()]
    for token in tokens:
        if token in _SENTENCE_ENDS:
            sentences.append(Counter())
        elif _is_content(token):
            sentences[-1][token] += 1
    return [sentence for sentence in sentences if sentence]


def _num_kept(sentences: Sequence[Counter[str]], others: Sequence[Counter[str]]) -> int:
    """Return the number of words that each sentence shares with the most similar one of the others, in total."""
    return sum(max((sentence & other).total() for other in others) for sentence in sentences)


@cached_by_text
def _tokens(text: str) -> tuple[str, ...]:
    text = _MUST.sub("must", _NAME_A.sub("aa", _OWNER.sub(r"\2 of \1", text)))
    text = text.replace("US", "usa").replace("out of", "from")
    tokens = [token.lower().replace("’", "'") for token in _TOKEN.findall(text)]
    return tuple(token for token in tokens if token not in _ARTICLES)


def _map_by_common_root(tokens: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    free = [word for word in dict.fromkeys(others) if word not in tokens and _is_content(word)]
    alone = [token for token in dict.fromkeys(tokens) if token not in others and _is_content(token)]
    return {token: word for token in alone for word in reversed(free) if not roots(word).isdisjoint(roots(token))}


def _is_content(token: str) -> bool:
    return token not in _NO_CONTENT and token[0].isalnum()


def _common_heads(ours: Sequence[str], theirs: Sequence[str]) -> set[str]:
    """Return nouns after several modifiers, such as `pass` in `Is the yearly pass cheaper than the monthly pass?`

    Only the modifiers distinguish the two phrases. Otherwise, they would have the role of the other phrase's noun.
    """
    ours_before, theirs_before = _words_before(ours), _words_before(theirs)
    return {
        token
        for token, before in ours_before.items()
        if len(set(before)) > 1 and all(map(_is_content, before)) and set(before) == set(theirs_before.get(token, ()))
    }


def _words_before(tokens: Sequence[str]) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for previous, token in pairwise((".", *tokens)):
        if _is_content(token):
            found.setdefault(token, []).append(previous)
    return found


def _phrases(tokens: Sequence[str]) -> set[tuple[str, str]]:
    return {(one, other) for one, other in pairwise(tokens) if _is_content(one) and _is_content(other)}


def _join_phrases(tokens: Sequence[str], phrases: Set[tuple[str, str]]) -> tuple[str, ...]:
    joined: list[str] = []
    for previous, token in pairwise(("", *tokens)):
        if (previous, token) in phrases:
            joined[-1] += f" {token}"
        else:
            joined.append(token)
    return tuple(joined)


def _roles(tokens: Sequence[str], participles: Set[str]) -> Mapping[str, frozenset[Role]]:
    roles_by_token: dict[str, frozenset[Role]] = {}
    content = before = agent_of = ""
    is_passive = False
    for place, (previous, token) in enumerate(pairwise((".", *tokens))):
        following = next((later_token for later_token in tokens[place + 1 :] if later_token not in _MODAL_VERBS), ".")
        if _is_content(token):
            roles: set[Role] = set()
            if agent_of:
                roles.add(("right", agent_of))
            else:
                roles |= {("after", before)} if before else set()
                roles |= {("left", content)} if content and (_is_content(previous) or before) else set()
            if _is_content(following):
                # The subject of a passive verb is its object.
                is_object = is_passive and not before and following.split(" ")[0] in participles
                roles.add(("left" if is_object else "right", following))
            roles_by_token[token] = roles_by_token.get(token, frozenset()) | roles
            content = token
        elif token in _PREPOSITIONS:
            before = "" if token == "to" and _is_infinitive(previous, following) else _PREPOSITIONS[token]
            agent_of = previous if token == "by" and is_passive and _is_content(previous) else ""
        elif token not in _COORDINATION:
            before = agent_of = ""
            is_passive = token in _PASSIVE_VERBS or (is_passive and token[0].isalnum())
            content = content if token[0].isalnum() else ""
    return roles_by_token


def _is_participle(token: str) -> bool:
    return token.endswith(("ed", "en")) and len(token) > 4


def _is_infinitive(previous: str, following: str) -> bool:
    return previous in _BEFORE_INFINITIVE or following in _VERBS


def _are_exchanged(
    ours: Sequence[str],
    theirs: Sequence[str],
    our_roles: Mapping[str, frozenset[Role]],
    their_roles: Mapping[str, frozenset[Role]],
    pair: tuple[str, str],
) -> bool:
    (a, b), (c, d) = ([_roles_outside_pair(roles[word], pair) for word in pair] for roles in (our_roles, their_roles))
    kept, forth, back = (
        _weight_of_common_roles(a, c) + _weight_of_common_roles(b, d),
        _weight_of_common_roles(a, d),
        _weight_of_common_roles(b, c),
    )
    if forth + back - kept < _DECISIVE:
        return False
    between, also_between = _tokens_between(ours, pair), _tokens_between(theirs, pair)
    if not between and not also_between:
        return False  # `speed reading` and `reading speed`
    if _is_coordination(between) or _is_coordination(also_between):
        return False
    is_flipped = (ours.index(pair[0]) < ours.index(pair[1])) != (theirs.index(pair[0]) < theirs.index(pair[1]))
    return bool(forth and back) or (kept == 0 and is_flipped)


def _roles_outside_pair(roles: frozenset[Role], pair: tuple[str, str]) -> set[Role]:
    return {role for role in roles if role[1] not in pair}


def _weight_of_common_roles(one: set[Role], other: set[Role]) -> int:
    return sum(_WEIGHTS[side] for side, _ in one & other)


def _tokens_between(tokens: Sequence[str], pair: tuple[str, str]) -> Sequence[str]:
    start, end = sorted(map(tokens.index, pair))
    return tokens[start + 1 : end]


def _is_coordination(tokens: Sequence[str]) -> bool:
    return not _COORDINATION.isdisjoint(tokens) and _PREPOSITIONS.keys().isdisjoint(tokens)


def _is_reordered(ours: Sequence[str], theirs: Sequence[str]) -> bool:
    if ours == theirs or Counter(ours) != Counter(theirs) or _blank_content_words(ours) != _blank_content_words(theirs):
        return False
    moved = [place for place, (one, other) in enumerate(zip(ours, theirs, strict=True)) if one != other]
    return moved[-1] - moved[0] > 1 and _COORDINATION.isdisjoint(ours[moved[0] : moved[-1]])


def _blank_content_words(tokens: Sequence[str]) -> list[str]:
    return ["" if _is_content(token) else token for token in tokens]


_ASKING = frozenset("who whom what which".split())
_SUPPORT = frozenset("do does did".split())
_BE = frozenset("is are was were be been being".split())
_AUXILIARY = _BE | frozenset("am can could will would shall should may might must have has had".split())
_PASSIVE = re.compile(r"\b(?:is|are|was|were|be|been|being|gets?|got|getting)\b.+\bby\b[^?.!]*\w")


def roles_differ(question: str, cached_question: str) -> bool:
    """Whether subject and object are exchanged: `was Tom hit by Ann` and `did Tom hit Ann`."""
    if roles_are_exchanged(question, cached_question):
        return True
    ours, theirs = _align_verbs(_content_words(question), _content_words(cached_question))
    if Counter(ours) != Counter(theirs) or len(ours) < 2:
        return False
    asked = {_asked_role(question), _asked_role(cached_question)}
    return (
        asked == {"subject", "object"} if ours != theirs else _voice_differs(question.lower(), cached_question.lower())
    )


def _align_verbs(ours: list[str], theirs: list[str]) -> tuple[list[str], list[str]]:
    alone, also_alone = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    if alone.total() != 1 or also_alone.total() != 1:
        return ours, theirs
    return ["" if word in alone else word for word in ours], ["" if word in also_alone else word for word in theirs]


def _voice_differs(question: str, cached_question: str) -> bool:
    active, passive = sorted((question, cached_question), key=lambda text: _PASSIVE.search(text) is not None)
    return bool(_PASSIVE.search(passive)) and not (_BE | {"by"}) & set(words(active))


@cached_by_text
def _asked_role(text: str) -> str | None:
    tokens = words(text)
    place = next((place for place, word in enumerate(tokens) if word in _ASKING), None)
    if place is None or place + 1 >= len(tokens):
        return None
    after = tokens[place + 1 : place + (3 if tokens[place] in ("what", "which") else 2)]
    if _SUPPORT & set(after):
        return "object"
    if after[0] in _BE:
        return "object" if tokens[-1] != "by" and "by" in tokens[place + 3 :] else None
    # In `what compensation am I owed`, a noun follows.
    return None if after[0] in FUNCTION_WORDS or _AUXILIARY & set(after[1:]) else "subject"


@cached_by_text
def _content_words(text: str) -> list[str]:
    return [word for word in words(text) if word not in FUNCTION_WORDS]
