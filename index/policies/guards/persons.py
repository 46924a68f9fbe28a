"""Detects an exchange of the user with the addressee or a third person: `Can I pay the vet?` and `Can you pay the vet?`

In `how do you boil an egg`, *you* is anybody, and the question equals `how do I boil an egg`.
"""

import re
from dataclasses import dataclass

from kvproxy.index.policies.guards.clause_persons import AUXILIARIES, DEFINITE, FIRST, clause_persons_differ
from kvproxy.index.policies.guards.words import FUNCTION_WORDS, base_forms, cached_by_text, words

_FRAME = re.compile(
    r"^\W*(?:(?:please )?(?:(?:can|could|would|will) you (?:please |kindly )?)?"
    r"(?:tell|explain|show|help|teach|advise|remind|inform)(?: to)? (?:me|us)"
    r"|do you (?:know|think|have (?:any|an) idea)|(?:i|we)(?: would|'d) like to know|(?:i|we) (?:want|need) to know)\b"
)
_ASKING = "how (?:long|often|soon|quickly|fast|much|many)|how|where|why|what|which|who|when"
_ADVERBS = (
    "(?: (?:not|also|still|already|just|even|ever|really|actually|usually|normally|typically|always|personally))*"
)
_SUBJECT = re.compile(
    rf"(?:\b(?P<asking>{_ASKING})\b(?! (?:if|to)\b)[^.;!?]*?)?"
    rf"\b(?P<auxiliary>{AUXILIARIES})(?:n?'t| not)? (?P<subject>i|we|you){_ADVERBS} (?P<verb>[\w']+)(?P<rest>.*)"
    rf"|\b(?P<infinitive>how to) (?P<its_verb>[\w']+)(?P<its_rest>.*)"
)
_SHORT_SUBJECT = r"(?:(?:the|a|an|my|our|your) )?[\w'-]+"
_AUXILIARY_PHRASES = (
    (re.compile(rf"\b(?:am|are|is) ({_SHORT_SUBJECT}) able to\b"), r"can \1"),
    (re.compile(rf"\b(?:am|are|is) ({_SHORT_SUBJECT}) going to (?=\w)"), r"will \1 "),
)
_OBJECT = re.compile(r"\b(?:me|(?<!\bthe )us|myself|ourselves)\b")
_THIRD_CLAUSE = re.compile(rf"\b(?:{AUXILIARIES}|is|has) (?!(?:i|we|you)\b)(?P<clause>[^,.;!?]+)")
_SECOND = re.compile(r"^[^.;!?]*\b(?:(?<!\bthank )(?<!\blove )you|your|yours|yourself|yourselves)\b")
# With these, `you` is the addressee: `will you ship it`. `Are you allowed to` asks for a rule.
_ADDRESSING = frozenset("did will have had are were was may shall".split())
_RULE = re.compile(r"(?:allowed|required|obliged|supposed|able|permitted|entitled|expected|meant)$")
_BE = frozenset("am are was were".split())
_NECESSITY = frozenset("need have want".split())
# `how will you know that it is ripe`, `where can you buy stamps`
_ADVICE = frozenset("how where why which who".split())
# With these, `you` is the business: `can you send a technician`, `which documents do you send`, `how much do you pay`.
_SERVICES = {
    **dict.fromkeys(("", "which", "what"), frozenset("call send deliver collect refund reimburse notify".split())),
    "how much": frozenset("pay refund reimburse charge".split()),
}
# Things that a business deals with: `how do you settle claims`.
_DEALINGS = re.compile(
    r"^(?: \w+)? (?:claims|complaints|refunds|premiums|employees|staff|customers?|clients?|patients|tenants|applicants"
    r"|applications|requests|orders|reservations|(?:personal|customer|user) (?:data|information))\b"
)
_INTRODUCTION = re.compile(
    r"\b(?:(?:[Ii](?: am|['’]m)|[Tt]his is) (?P<name>[A-Z][a-z]+(?: [A-Z][a-z]+)+)"
    r"|[Mm]y name is (?P<given>[^\W\d]+)(?=[,.;!?]| and\b)"
    r"|(?:[Mm]y name is|[Ii](?: am|['’]m)) (?P<typed>[^\W\d]+ [^\W\d]+)(?=[,.;!?]| and\b))"
)


@dataclass(frozen=True, slots=True)
class _Clause:
    """The question word, the auxiliary, the subject, the verb, and the words after it of a question's main clause."""

    asking: str
    auxiliary: str
    subject: str
    verb: str
    rest: str
    text: str


def persons_differ(question: str, cached_question: str) -> bool:
    """Whether the user does something in one question, and the addressee or a third person in the other one."""
    if _is_about_named_user(question, cached_question) or _is_about_named_user(cached_question, question):
        return True
    if _does_to_user(question, cached_question) or _does_to_user(cached_question, question):
        return True
    if clause_persons_differ(_plain(question), _plain(cached_question)):
        return True
    ours, theirs = _main_clause(question), _main_clause(cached_question)
    if ours is None or theirs is None or base_forms(ours.verb).isdisjoint(base_forms(theirs.verb)):
        return False
    if (ours.subject == "you") == (theirs.subject == "you"):
        return False
    own, addressed = (theirs, ours) if ours.subject == "you" else (ours, theirs)
    if _is_requirement(addressed):
        return False
    return _SECOND.search(own.rest) is not None or not _may_be_anybody(addressed)


def _is_about_named_user(own: str, other: str) -> bool:
    """Whether only one text is the user's own: `I am Ann Lee, what is my limit?`, `What is the limit of Ann Lee?`"""
    match = _INTRODUCTION.search(own)
    if match is None or FIRST.search(other.lower()):
        return False
    name = " ".join(words(match["name"] or match["given"] or match["typed"]))
    known = " ".join(word.removesuffix("'s") for word in words(other))
    return FUNCTION_WORDS.isdisjoint(name.split()) and f" {name} " in f" {known} "


def _does_to_user(other: str, own: str) -> bool:
    """Whether a third person does to the user what the user does to that person in the own question."""
    ours, match = _main_clause(own), _THIRD_CLAUSE.search(_plain(other))
    if match is None or ours is None or ours.subject == "you" or _OBJECT.search(ours.rest):
        return False
    if ours.auxiliary in _BE and not (_RULE.match(ours.verb) or ours.verb.endswith("ing")):
        return False  # `is the bank near me`, `am I near the bank`
    theirs = match["clause"].split()
    place = next((place for place, word in enumerate(theirs) if base_forms(word) & base_forms(ours.verb)), 0)
    subject, rest = theirs[:place], " ".join(theirs[place + 1 :])
    named = {word.removesuffix("'s") for word in re.findall(r"[\w'-]+", ours.rest)}
    return bool(subject) and subject[-1] in named - FUNCTION_WORDS and FIRST.search(rest) is not None


def _plain(text: str) -> str:
    plain = _FRAME.sub("", text.replace("US", "usa").lower().replace("’", "'"))
    for phrase, auxiliary in _AUXILIARY_PHRASES:
        plain = phrase.sub(auxiliary, plain)
    return plain


@cached_by_text
def _main_clause(text: str) -> _Clause | None:
    plain = _plain(text)
    match = _SUBJECT.search(plain)
    if match is None:
        return None
    if match["infinitive"]:
        return _Clause("how", "", "i", match["its_verb"], match["its_rest"], plain)
    return _Clause(match["asking"] or "", match["auxiliary"], match["subject"], match["verb"], match["rest"], plain)


def _is_requirement(clause: _Clause) -> bool:
    """Whether a clause asks for a thing that both need: `what do you need to verify my identity`."""
    return clause.verb == "need" and (bool(clause.asking) or not clause.rest.startswith(" to "))


def _may_be_anybody(clause: _Clause) -> bool:
    """Whether `you` may stand for anybody, as in `can you freeze rice`."""
    if FIRST.search(clause.text) or _DEALINGS.search(clause.rest):
        return False
    if clause.auxiliary in _ADDRESSING and not (clause.auxiliary == "will" and clause.asking == "how"):
        return clause.auxiliary == "are" and _RULE.match(clause.verb) is not None
    if not base_forms(clause.verb).isdisjoint(_SERVICES.get(clause.asking, ())):
        return False
    if clause.asking in _ADVICE:
        return True
    if clause.auxiliary == "do" and clause.verb not in _NECESSITY and not clause.asking:
        return False
    return DEFINITE.search(clause.rest) is None
