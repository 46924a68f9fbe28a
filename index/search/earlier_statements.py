"""Finds the statements of a conversation's earlier turns that may change the answer to a later question.

A question and its answer do not matter to another question. A passage, a fact, a correction, a preference, or an instruction
may change a later answer, even if it shares no word with the later question.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

from kvproxy.index.policies.guards.fillers import without_fillers
from kvproxy.index.policies.guards.words import FUNCTION_WORDS, roots, words
from kvproxy.index.search.reported_statements import without_report

_MAX_BYTES_OF_CASE = 300
_COVERED = 0.5
SENTENCE_END = re.compile(r"(?<=[.?!;])\s+|\n+")
"""Matches between two sentences of a turn."""
_CLAUSE_END = re.compile(r"(?<=[,:])\s+|\s+[-–—]\s+")
_LEAD = (
    r"^\W*(?:(?:and|but|so|ok|okay|well|also|right|done|yes|yeah|no|then|or|now|great|cool|nice|thanks|good|brill|perfect|fine"
    r"|first|hi|hello|hey|sorry|oh|please)\b[,.! ]*)*"
)
_QUESTION = re.compile(
    _LEAD + r"(?:(?:how|what|which|who|why|whose)(?! (?:i|we|you|they|he|she|it)\b)|what's|whats|where's|when's|who's"
    r"|(?:when|where) (?:is|are|was|were|do|does|did|can|could|will|would|should)"
    r"|(?:is|are|was|were|does|did|do|can|could|may|should|will|would|has|have|am|must)(?:n't)? (?!not\b)\w+"
    r"|(?:explain|describe|tell me|list|show me|name|define|write|translate|calculate|convert|draft|summari[sz]e) \w+"
    r"|(?:(?:i|we) )?(?:was|were) (?:just )?going to ask (?:if|whether|how|what|when|where|who))\b",
    re.IGNORECASE,
)
_HEADING = re.compile(_LEAD + r"(?:how|what|which|who|why|whose|when|where)\b", re.IGNORECASE)
_LATER_QUESTION = re.compile(
    r"^\W*(?:(?:how|what|where|when|who) (?:do|does|did|can|is|are|will|should|would)"
    r"|(?:do|does|did|can|could|is|are|will|should|would) (?:i|you|we|they|he|she|it|there|that))\b",
    re.IGNORECASE,
)
_INTENTION = re.compile(
    _LEAD + r"(?:(?:i|we)(?:'ll| will)(?: just| definitely)? (?!be\b|have\b|always\b|never\b|only\b)\w+|let me \w+"
    r"|go (?:ahead|for it)|never ?mind)\b",
    re.IGNORECASE,
)
_PLAN = re.compile(r"\bi(?:'ll| will| was going to)\b", re.IGNORECASE)
_CONDITION = re.compile(r"^\W*(?:(?:and|but|so|ok)\s+)*(?:if|when|once|for|before|after|in case)\b", re.IGNORECASE)
_INSTRUCTION = re.compile(
    r"\b(?:from now on|pretend|act (?:as|like)|imagine|role ?play|you are (?:an?|my|the)|call me|suppose|assum(?:e|ing)|as if"
    r"|we are in|(?:answer|reply|respond|speak|talk|write)(?: to me)? (?:in|like|as|only|with|for)"
    r"|(?<!i )(?<!we )(?:always|never|only) \w+|(?:explain|describe|write|answer) everything|every (?:answer|time)"
    r"|all (?:answers|prices|numbers|distances)|let's (?:play|say|pretend|talk)"
    r"|(?:can|could|will|would) you (?:please )?(?!(?:tell|help|show|explain|give|list|describe|recommend|suggest|send|do"
    r"|write|translate|draft|convert|calculate|compare|be|like|also)\b))",
    re.IGNORECASE,
)
_ATTRIBUTE = re.compile(
    r"\b(?:(?:i|we)(?:'m|'re| am| are) (?!\w+ing\b|so\b|more\b|just|really|sure|not sure|afraid|curious|interested|sorry|glad"
    r"|happy|nervous|worried)"
    r"|(?:i|we) (?:only |already |also |usually |mostly )?(?:have|own|live|use|work|run|pay|prefer|like|love|hate|speak|study"
    r"|teach|sell|ship|support|host|deploy|mean|say|can't|cannot|don't (?:have|use|eat|drink|want|like|own|speak))"
    r"|(?:i|we)'ve got|(?:^\W*|(?:that|and|but|so) )our|as an? \w+|since|because|given"
    r"|my \w+(?: \w+)?(?:(?:'s| is| are| was| were) (?:an?|on|from|in (?-i:[A-Z])\w*|\d+|allergic)"
    r"| (?:has|have)(?! been)| (?:runs?|uses?|only|supports?|goes)))\b",
    re.IGNORECASE,
)
_ATTRIBUTE_IN_QUESTION = re.compile(
    r"\bthat (?:i|we|our|my)\b|\blike (?:me|us)\b|\b(?:my|our) (?:\w+ )?(?:sons?|daughters?|child(?:ren)?|kids?|bab(?:y|ies)|wife"
    r"|husband|partner|mother|mum|mom|father|dad|parents?|brothers?|sisters?|friends?|dogs?|cats?|pets?|horses?|team|company"
    r"|family) (?:with|without) \w+",
    re.IGNORECASE,
)
_HEALTH_OR_DIET = re.compile(
    r"\b(?:allerg\w+|pregnan\w+|breastfe\w+|diabet\w+|asthma\w*|epilep\w+|coeliac|celiac|intoleran\w+|vegans?|vegetarians?"
    r"|kosher|halal|disabled|disability|autis\w+|dyslexi\w+)\b",
    re.IGNORECASE,
)
# `do I have to log in every time` asks for a rule, rather than for answers of a kind.
_ABOUT_RULE = re.compile(_LEAD + r"(?:do|does|did|must|will) (?:i|we|it|they|he|she)\b", re.IGNORECASE)
_OWN_PAST = re.compile(
    r"\b(?:i|we|i've|we've|my|our)\b.*\b(?:ago|yesterday|last (?:night|week|month|year))\b", re.IGNORECASE
)
_STATE_OF_USER = re.compile(
    r"\b(?:you're|you are) (?:on|in|an?|using|not|currently|registered|from)\b"
    r"|\byour (?:current )?(?:\w+ ){0,2}(?:plan|account|workspace|subscription|contract|tariff|licence|license|tier|role|trial"
    r"|region|country)(?:'s| is| has| was| ended| expired)",
    re.IGNORECASE,
)
_DESCRIPTION = re.compile(
    _LEAD + r"(?:your \w+|i(?: can|'ve)? (?:see|found|checked)\b|the \w+ shows?\b)", re.IGNORECASE
)
_ABOUT_USER = re.compile(
    r"\b(?:are you|do you (?!want|need|remember)|you(?:'re| are) (?:on|using|in)|have you got|(?:is|are) your)\b",
    re.IGNORECASE,
)
_PLEASANTRY = re.compile(
    r"^\W*(?:(?:thanks|thank you|okay|ok|great|well|and|but|no worries)\b[,! ]*)*"
    r"(?:(?:thanks|thank you) for|good luck|enjoy|happy \w+|sorry (?:about|for|to hear)|not at all)(?: [\w']+){0,4}\W*$",
    re.IGNORECASE,
)
# `I've got a couple of other questions first`
_ANNOUNCEMENT = re.compile(
    r"^\W*(?:(?:and|but|so|ok|okay|well|sure|also|before that|actually)\b[, ]*)*(?:(?:i|we)(?:'ve| have)(?: got)? |there are )?"
    r"(?:(?:a|an|just|couple|few|some|one|two|three|another|other|more|quick|last|different|separate|random|general|of)\b ?)+"
    r"(?:questions?|things?|q)(?: (?:first|to ask|for you|now|actually|more))*\W*$",
    re.IGNORECASE,
)
_OWN_CASE = re.compile(r"\b(?:i|i'm|i've|i'd|my|mine|we|we're|we've)\b", re.IGNORECASE)
_OWN_CASE_WITHOUT_I = re.compile(_LEAD + r"(?:just |already )?(?:got|need|want)\b", re.IGNORECASE)
_ADVICE = re.compile(r"\byou (?:can|could|may|might|should)\b", re.IGNORECASE)
_LOOKUP = re.compile(
    r"\b(?:i|we)(?:'ve| have)? (?:looked|found|searched|checked|read|retrieved)\b[^:\n]{0,60}:\s|\baccording to\b"
    r"|\b(?:says?|states?|shows?|reads?)\b[^:\n]{0,20}:\s"
    r"|^\W*(?:observation|search results?|results?|context|passages?|sources?|documents?|retrieved)\b[^:\n]{0,20}:\s",
    re.IGNORECASE,
)
_DATA = re.compile(r"```|[{}<>\[\]|=]|\w\(|^\W*[\w ]{1,20}:\s|[\"“”«»]|\n")
_NAME = re.compile(r"(?<=\s)[A-Z]\w+")
_VAGUE = frozenset("use get make need want take put long offer change".split())
SMALL_TALK = frozenset(
    "hi hello hey hiya howdy hallo yo greetings there good morning afternoon evening day night welcome thanks thank thx"
    " ty cheers ta you your you're so very really quite much lot again for reading sharing telling me letting know that"
    " that's this it it's ok okay k alright right sure yes yep yeah yup no nope fine great nice cool perfect brilliant"
    " brill excellent lovely wonderful awesome fantastic got gotcha understood noted see i i'm i've i'll glad happy"
    " pleased helpful handy useful help helps helped to hear of course absolutely certainly definitely pleasure my problem"
    " worries at all any anything else anytime time done found sorted oh ooh ah aw aww ha haha lol wow whoa phew"
    " ugh mate hmm well typical fair scary"
    " annoying please sorry bye goodbye have a an one another other last more quick question questions ask unrelated"
    " random general thing things bit while here but and also though just worth will do makes sense sounds is are was we"
    " we're the be can today first using chat enjoy ready go ahead continue whenever congratulations congrats choice"
    " information info everything meet bot how what would like about enough sound keep mind remember use will shall nearly"
    " exactly does did".split()
)
"""Words of greetings, thanks, and acknowledgements, and function words around them."""

_NO_CONTENT = FUNCTION_WORDS | SMALL_TALK | _VAGUE


def earlier_statements(turns: Sequence[str], *, lasting: bool = False) -> list[str]:
    """Return the statements of the earlier turns that may change the answer to the last turn.

    Args:
        turns: alternate between the user and the assistant, and end with a question of the user.
        lasting: only statements that may change the answer to any question, whatever it is about.
    """
    *earlier, question = turns
    statements, is_caused = list[str](), False
    for place in range(0, len(earlier) - 1, 2):
        turn, reply = earlier[place : place + 2]
        asked = [each for each in _sentences(earlier[place - 1]) if "?" in each and has_content(each)] if place else []
        if any(map(_ABOUT_USER.search, asked)):
            by_user = [_without_questions(turn)]
        else:
            is_explained = _asks(turn) or _is_discussed(turn, reply, is_continued=is_caused or bool(asked))
            by_user = [*_statements_of_user(turn, "" if lasting else question, is_explained=is_explained)]
        # A reply to small talk continues an earlier answer. A command, such as a search, returns new facts.
        is_caused = not any(map(_INSTRUCTION.search, by_user)) and (
            _asks(turn) or (not by_user and (is_caused or bool(statements_of(turn))))
        )
        by_assistant = [*_statements_of_assistant(reply, question, is_caused=is_caused)]
        is_caused = is_caused and not by_assistant
        statements += [*by_user, *by_assistant]
    return statements


def _without_questions(reply: str) -> str:
    """Return a reply without questions about something else than the user; the whole reply if it has no other sentence."""
    kept = [each for each in _sentences(reply) if not is_question(each) or is_own_case(_PLAN.sub("", each))]
    return " ".join(kept) or reply


def is_own_case(statement: str) -> bool:
    """Whether users state something about themselves, perhaps without *I*, rather than a fact about the world."""
    return _OWN_CASE.search(statement) is not None or _OWN_CASE_WITHOUT_I.search(statement) is not None


def _is_discussed(turn: str, reply: str, *, is_continued: bool) -> bool:
    """Whether the reply is about the statements of a turn, rather than an acknowledgement."""
    return (is_continued or is_own_case(without_report(turn))) and any(map(has_content, _sentences(reply)))


def _statements_of_user(turn: str, question: str, *, is_explained: bool) -> Iterator[str]:
    """Yield statements of a user, without those that only explain their own question or problem, or continue one."""
    if "?" not in turn and _DATA.search(turn.strip()):
        yield turn
        return
    is_explained = is_explained and len(turn.encode("utf-8", "replace")) <= _MAX_BYTES_OF_CASE
    yield from (each for each in statements_of(turn) if not is_explained or _may_matter(each, question))
    yield from (each for each in _sentences(turn) if is_question(each) and (_instructs(each) or _presupposes(each)))


def _may_matter(statement: str, question: str) -> bool:
    """Whether an explained statement may matter to a later question, or to each question if `question` is empty."""
    if _persists(statement) or _DATA.search(statement) or _share_content(statement, question):
        return True
    return bool(question) and _OWN_PAST.search(statement) is not None


def _instructs(question: str) -> bool:
    return _INSTRUCTION.search(question) is not None and _ABOUT_RULE.search(question) is None


def _presupposes(question: str) -> bool:
    """Whether a question names an attribute of the user that may matter to other questions."""
    return _ATTRIBUTE_IN_QUESTION.search(question) is not None or (
        is_own_case(question) and _HEALTH_OR_DIET.search(question) is not None
    )


def _statements_of_assistant(reply: str, question: str, *, is_caused: bool) -> Iterator[str]:
    """Yield sentences of a reply that no question caused, or that describe the user, quote, or may answer the later question."""
    is_looked_up = False
    for sentence in _sentences(reply):
        is_looked_up = is_looked_up or looks_up(sentence)
        is_answer = is_caused or "?" in sentence or _ADVICE.search(sentence) is not None
        is_answer = is_answer and not is_looked_up
        if has_content(sentence) and (not is_answer or _STATE_OF_USER.search(sentence) or _covers(sentence, question)):
            yield sentence


def describes_user(sentence: str) -> bool:
    """Whether a sentence of the assistant is about the user's case: `Your booking includes breakfast.`"""
    return _DESCRIPTION.search(sentence) is not None


def looks_up(sentence: str) -> bool:
    """Whether the assistant begins a quotation: `I looked this up: refunds take 14 days.`"""
    return _LOOKUP.search(sentence) is not None


def states_facts(turn: str) -> bool:
    """Whether a turn has a sentence that is neither a question nor small talk."""
    return any(has_content(sentence) and not is_question(sentence) for sentence in _sentences(turn))


def is_pleasantry(sentence: str) -> bool:
    """Whether a sentence thanks, wishes, or announces a question: `sorry to hear that`, `I've got a few questions`."""
    return _PLEASANTRY.search(sentence) is not None or _ANNOUNCEMENT.search(sentence) is not None


@lru_cache(maxsize=4096)
def has_content(sentence: str) -> bool:
    """Whether a sentence has more than small talk."""
    if is_pleasantry(sentence):
        return False
    return not SMALL_TALK.issuperset(words(sentence)) or any(letter.isdigit() for letter in sentence)


def _asks(turn: str) -> bool:
    return any(map(is_question, _sentences(turn)))


@lru_cache(maxsize=4096)
def is_question(sentence: str) -> bool:
    return "?" in sentence or _place_of_question(_CLAUSE_END.split(without_fillers(sentence))) is not None


def _place_of_question(clauses: Sequence[str]) -> int | None:
    patterns = (_QUESTION, *(_LATER_QUESTION for _ in clauses[1:]))
    places = [
        place for place, (pattern, clause) in enumerate(zip(patterns, clauses, strict=True)) if pattern.search(clause)
    ]
    if len(places) == 1 and _is_heading(clauses, places[0]):
        return None
    return next(iter(places), None)


def _is_heading(clauses: Sequence[str], place: int) -> bool:
    """Whether a clause announces a later one, rather than asks: `How boards are exported: in the File menu.`"""
    return any(each.endswith(":") for each in clauses[place:-1]) and _HEADING.search(clauses[place]) is not None


def _persists(statement: str) -> bool:
    return any(each.search(statement) for each in (_ATTRIBUTE, _INSTRUCTION)) or _presupposes(statement)


@lru_cache(maxsize=4096)
def _sentences(turn: str) -> tuple[str, ...]:
    return tuple(each for each in SENTENCE_END.split(turn.strip()) if any(map(str.isalnum, each)))


@lru_cache(maxsize=4096)
def statements_of(turn: str) -> tuple[str, ...]:
    """Return the sentences of a turn, or their clauses before a question, that have more than small talk."""
    parts = (_before_question(without_fillers(sentence)) for sentence in _sentences(turn))
    return tuple(part for part in parts if part and has_content(part) and not _INTENTION.search(without_report(part)))


def _before_question(sentence: str) -> str:
    if not is_question(sentence):
        return sentence
    clauses = _CLAUSE_END.split(sentence)
    place = _place_of_question(clauses)
    before = clauses[: len(clauses) - 1 if place is None else place]
    return " ".join(clause for clause in before if not _CONDITION.search(clause))


@lru_cache(maxsize=256)
def _content(question: str) -> tuple[frozenset[str], ...]:
    """Return the roots of each content word of a question, apart from names."""
    names = {word.lower() for word in _NAME.findall(question)}
    found = {word.removesuffix("'s") for word in words(question)} - _NO_CONTENT - names
    return tuple(roots(word) for word in found if len(word) > 2)


def _num_common(text: str, question: str) -> int:
    known = frozenset(root for word in words(text) for root in roots(word.removesuffix("'s")))
    return sum(not known.isdisjoint(each) for each in _content(question))


def _share_content(statement: str, question: str) -> bool:
    return _num_common(statement, question) > 0


def _covers(sentence: str, question: str) -> bool:
    return _num_common(sentence, question) >= max(1, _COVERED * len(_content(question)))
