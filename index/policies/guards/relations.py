"""Detects exchanged roles across forms of a relation: `replace butter with oil` and `substitute butter for oil`.

Each relation has a marked role, such as the replaced thing, and forms that name it. If the marked words of each question occur
in the other question without being marked there, the roles are exchanged.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache

from kvproxy.index.policies.guards.words import FUNCTION_WORDS, cached_by_text, roots

# In a form, `X` is the marked role, `Z` is the same before a noun, and `Y` is another phrase. Forms of *be* are left out.
_FORMS = {
    "replaced": """
        replace/replaces/replaced/replacing X; X replaced/substituted by/with; instead of X; in place/lieu of X; rather than X
        take/takes/taking the place of X; substitute/substitutes/substituted/replacement/replacements for X; stand-in for X
        alternative/alternatives to X; substitute/substituting Y for X; substitute/substituting X by/with
        swap/swapping/exchange/exchanging/trade/trading X for; drop/dropping/abandon X in favour/favor of; drop/dropping X for
        switch/switching/migrate/migrating/move/moving/change/changing from X; ran/run out of X
        Z substitute/substitutes/replacement/replacements/alternative/alternatives
        better than X; preferable/superior to X; in preference to X; choose/prefer/pick/recommend/take/use Y over X; prefer Y to X
    """,
    "caused": """
        cause/causes/caused/causing X; cause/causes of X; lead/leads/led to X; result/results/resulted in X; bring/brings on X
        give/gives/gave rise to X; set/sets off X; make/makes/making X worse; X brought on by
        trigger/triggers/triggered X; produce/produces X; reason/reasons/responsible for X; behind X; make/makes X happen
        X caused/triggered by; X due to; X because of; X come/comes/stem/stems from; X result/results of/from
        X a result/consequence/effect of; X a side effect of; X a symptom of; get/develop X from
    """,
    "required": """
        require/requires X; need/needs X; depend/depends/rely/relies on X; without X; without having X; presuppose/presupposes X
        have no X; lack/lacks X; ask/asks for X; skip X; involve/involves X; don't/doesn't have X; only possible with X
        must i/we/you/one have X; have to have X
        X required/needed/necessary/mandatory/compulsory/essential for/to; X a condition/requirement/prerequisite/must for/to
    """,
    "contained": """
        contain/contains X; does/do Y have X; include/includes X; come/comes with X; consist/consists/made of X; there X in
        X part of; X a part of
        X included/contained in; X come/comes in; X inside; find X in; X found in; sold with X; feature/features X
        cover/covers X; X an ingredient of; X among; get X with
    """,
    "owned": """
        own/owns/owned X; acquire/acquires/acquired X; purchase/purchased X; buy/bought X; taken/take/took over X; owner of X
        parent of X; parent company of X; X owned/acquired/bought by; X belong/belongs to; X a subsidiary/brand of
        X in the hands of
    """,
    "earlier": """
        after X; after i/you/we X; once X; once i/you/we X; until X; until i/you/we X; X before; X prior to; X and then/afterwards
        X first and then; X and only then; X first; younger/newer/later than X; X older/earlier than; follow/follows/followed X
        X followed by; X precede/precedes; start/starts with X
    """,
    "smaller": """
        bigger/larger/greater/taller/longer than X; exceed/exceeds X; bigger/larger/greater compared to/with X
    """,
    "taught": "teach/teaches/taught X; teacher of X; X taught by; X learn/learns/learned/learnt from; X study/studied under",
    "led": """
        manage/manages/managed X; boss/manager/head/supervisor of X; supervise/supervises/supervised X; X report/reports to
        X managed/supervised by; X work/works for
    """,
    "beaten": """
        beat/beats/beaten X; win/wins/won against X; defeat/defeats/defeated X; knock/knocks/knocked out X; X lose/loses/lost to
        X beaten/defeated by
    """,
    "lent": """
        lend/lends/lent money to X; lend/lends/lent X money; give/gives/given/gave X a loan; X borrow/borrows/borrowed money from
        X get/gets/got a loan from; X owe/owes/owed
    """,
}  # fmt: skip
_BE = frozenset("is are was were be been being".split())
_STOPS = FUNCTION_WORDS | frozenset(
    "into onto within inside without using than over before after as against per via through under behind instead because due"
    " first afterwards not also still ever already always never need needs".split()
)
_TOKEN = re.compile(r"\w[\w.'+#-]*\w|\w|[,;:.?!()]")


def roles_are_exchanged(question: str, cached_question: str) -> bool:
    """Whether two things exchange their roles in a relation: `can A cause B` and `is A due to B`."""
    ours, theirs = _marked_words(question), _marked_words(cached_question)
    return any(
        _occur_unmarked(ours[relation], theirs[relation], cached_question)
        and _occur_unmarked(theirs[relation], ours[relation], question)
        for relation in ours.keys() & theirs.keys()
    )


def _occur_unmarked(marked: Set[str], marked_there: Set[str], other: str) -> bool:
    there, anywhere = _all_roots(marked_there), _all_roots(_tokens(other))
    return any(roots(word).isdisjoint(there) and not roots(word).isdisjoint(anywhere) for word in marked)


def _all_roots(tokens: Iterable[str]) -> set[str]:
    return {root for token in tokens for root in roots(token)}


@cached_by_text
def _tokens(text: str) -> list[str]:
    return [token for token in _TOKEN.findall(text.lower().replace("’", "'")) if token not in _BE]


@cached_by_text
def _marked_words(text: str) -> Mapping[str, Set[str]]:
    """Return the content words in the marked role of each relation that the text names."""
    tokens, forms, found = _tokens(text), _forms_by_word(), defaultdict[str, set[str]](set)
    plain = " ".join(token if token in _STOPS or not token[0].isalnum() else f"{_CONTENT}{token}" for token in tokens)
    for relation, form in {named for token in tokens for named in forms.get(token, ())}:
        for match in _compile(form).finditer(plain):
            found[relation] |= {word[1:] for word in match["marked"].split() if word[0] == _CONTENT}
    return found


@cache
def _forms_by_word() -> Mapping[str, Sequence[tuple[str, str]]]:
    """Return the forms by each possibility of their first word that is no role, with their relations."""
    found = defaultdict[str, list[tuple[str, str]]](list)
    for relation, forms in _FORMS.items():
        for form in re.split("[;\n]", forms.strip()):
            named = next(word for word in form.split() if word not in _ROLES)
            for word in named.split("/"):
                found[word].append((relation, form))
    return found


@cache
def _compile(form: str) -> re.Pattern[str]:
    words = (_ROLES.get(word) or f"{_CONTENT}?(?:{word.replace('/', '|')})" for word in form.split())
    return re.compile(rf"(?<!\S){' '.join(words)}(?!\S)")


_CONTENT = "~"
"""Begins each content word of a searched text. Patterns with all other words would compile slowly, and delay requests."""
_ARTICLES = "(?:(?:a|an|the|my|your|our|their) )*"
_WORD = rf"{_CONTENT}\S+"
_PHRASE = rf"{_ARTICLES}{_WORD}(?: (?:of )?{_ARTICLES}{_WORD}){{0,3}}"
_ROLES = {"X": rf"(?P<marked>{_PHRASE})", "Y": _PHRASE, "Z": rf"(?P<marked>{_WORD}(?: {_WORD}){{0,3}})"}
