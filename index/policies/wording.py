"""Finds questions that are equal apart from spelling mistakes and the form of asking."""

import re
from collections.abc import Sequence

from kvproxy.index.models.verifier.multilingual import is_english_word
from kvproxy.index.policies.guards.fillers import without_fillers
from kvproxy.index.policies.guards.words import NUMBER_WORDS, SINGULAR_TIMES, WORD, base_forms, cached_by_text, words

_MIN_LENGTH, _LONG = 5, 8
# Chat abbreviations, and contractions without an apostrophe.
_SPELLINGS = {
    **{"u": "you", "ur": "your", "pls": "please", "plz": "please", "im": "I'm", "ive": "I've"},
    **{
        f"{verb}nt": f"{verb}n't"
        for verb in "do does did is are was were ca wo could would should has have had".split()
    },
    **{f"{word}s": f"{word}'s" for word in "what how where who when".split()},
}


def correct_spelling(question: str, other: str) -> str:
    """Return a question in which misspelt words are replaced by words of the other question.

    Chat abbreviations, and contractions without an apostrophe, are spelt out. Another word is misspelt if it is in lower case,
    not a common English word, and one edit (two edits for 8 or more letters) away from a common word that only the other
    question has.
    """
    ours, theirs = set(words(question)), set(words(other))
    known_spellings = _SPELLINGS | {word.replace("'", ""): word for word in theirs - ours if "'" in word}
    known = [word for word in theirs - ours if len(word) >= _MIN_LENGTH and _is_common(word)]

    def correct(match: re.Match[str]) -> str:
        word = match.group()
        if word in known_spellings:
            return known_spellings[word]  # `childs` for `child's`
        if len(word) < _MIN_LENGTH - 1 or not word.islower() or word in theirs or _is_common(word):
            return word
        near = [candidate for candidate in known if _is_near(word, candidate) and not _are_inflections(word, candidate)]
        return near[0] if len(near) == 1 else word

    return WORD.sub(correct, question)


def _is_common(word: str) -> bool:
    """Whether a word or its base form is in the vocabulary: `carrots`, but not `acess`, which is no plural of `aces`."""
    return any(map(is_english_word, {word} if word.endswith("ss") else base_forms(word)))


def _are_inflections(word: str, known: str) -> bool:
    """Whether both are forms of one word, such as `smokes` and `smoked`, so that neither is misspelt."""
    return not base_forms(word).isdisjoint(base_forms(known))


def _is_near(word: str, known: str) -> bool:
    limit = 2 if min(len(word), len(known)) >= _LONG else 1
    return word[0] == known[0] and abs(len(word) - len(known)) <= limit and _edits(word, known) <= limit


def _edits(word: str, other: str) -> int:
    """Return the optimal string alignment distance, in which an exchange of neighbours is one edit."""
    before: Sequence[int] = ()
    row: Sequence[int] = range(len(other) + 1)
    for place, letter in enumerate(word, 1):
        current = [place]
        for column, target in enumerate(other, 1):
            cost = min(row[column] + 1, current[-1] + 1, row[column - 1] + (letter != target))
            if place > 1 < column and letter == other[column - 2] and word[place - 2] == target:
                cost = min(cost, before[column - 2] + 1)
            current.append(cost)
        before, row = row, current
    return row[-1]


_MAKERS = (
    "author wrote|writer wrote|inventor invented|founder founded|creator created|composer composed|painter painted"
    "|designer designed|builder built|discoverer discovered|publisher published|producer produced"
)
_MEASURES = "height tall|length long|duration long|size big|age old|depth deep|width wide|speed fast"
_ASKING = r"(?:can|could|should|might|would|do)"
_RULES = r"(?:\w+ )?(?:policy|policies|terms|rules)"
_OFFER = rf"(?:{_RULES}|(?:\w+ )?(?:prices|pricing|fees|(?:opening|business|office) hours))"
# Requests for a text: `Could you explain it to me` and `Explain it` ask for the same.
_ASKED = r"(?:can|could|would|will) you "
_TEXTS = r"(?:explain|describe|define|outline|clarify|summari[sz]e|compare)"
# With these words, `to me` and `for me` are content: `Explain the risk to me`, `Describe the best job for me`.
_PERSONAL = (
    r"(?:risk|danger|threat|harm|damage|benefit|advantage|importance|meaning|value|relevance|cost|charge|access|debt|close|near"
    r"|next|similar|important|due|owed|best|better|right|good|suitable|ideal|perfect|safe|what|how|why|who|when|where|which|if"
    r"|\w+(?:ed|ing)\b)"
)
_COURTESIES = tuple(
    (re.compile(pattern, re.IGNORECASE), replacement)
    for pattern, replacement in (
        (r",? ?\b(?:please|kindly)\b(?! (?:the|an?|my|your|his|her|him|their|them|every\w+|people)\b),?", ""),
        (rf"^(\W*(?:{_ASKED})?{_TEXTS}) (?:to|for) me\b", r"\1"),
        (rf"^(\W*(?:{_ASKED})?{_TEXTS}(?: (?!{_PERSONAL})[\w'-]+){{1,6}}) (?:to|for) me(?=\W*$)", r"\1"),
    )
)
_MONTHS = "january|february|march|april|june|july|august|september|october|november|december"
_PERIODS = rf"(?:{_MONTHS}|q[1-4]|(?:19|20)\d\d)"
_UNITS = "(?:second|minute|hour|day|week|month|year)"
# What a business does for its customers, without the ending.
_SERVICES = "(accept|offer|support|provid|cover|stock|allow|refund)"
# `Is my claim accepted?` asks for its state.
_BEFORE = "(?:if|when|after|before|while|unless|once|in|on|at|for|with|without|during)"
_WISH = r"i(?:d like| would like| want| need)"
_BY_WHAT_MEANS = rf"how (?:(?:does|would) (?:that|this|it) work|{_ASKING} i (?:do|go about) (?:that|this|it|so))"
_ALLOWED = "(?:possible|ok|okay|all right|alright|fine|allowed|permitted)"
_SINGLE = r"(?!(?:my|our|it|this|that|they|he|she|i|you|we)\b)"
_FORMS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"^{_ASKED}(?=(?:{_TEXTS}|list|tell me|show me|give me)\b)", ""),
        (r"\byou guys\b", "you"),
        (r"\bcan(?:'t| not)\b", "cannot"),
        (r"\bwon't\b", "will not"),
        (r"n't\b", " not"),
        (r"\bi'm\b", "i am"),
        (r"\b(you|we|they)'re\b", r"\1 are"),
        (r"'ve\b", " have"),
        (r"'ll\b", " will"),
        (r"\b(what|who|where|when|how|why|that|it|there)'s\b", r"\1 is"),
        (r"'", ""),
        (
            r"^(?:(?:can|could|would|will) you (?:please )?(?:tell|explain|show|help) me|do you know|i(?: would|d) like to know"
            r"|i (?:want|need) to know|(?:please )?tell me|let me know)[ ,:]+(?=what|who|where|when|how|why|if|whether)",
            "",
        ),
        # `If it rains, is the tour cancelled?`
        (rf"^({_BEFORE} [^,;:.?!]+), ([^,;:.?!]+)$", r"\2 \1"),
        (rf"^{_WISH} to (.+?)[,.;:!]+ (?:so |and )?{_BY_WHAT_MEANS}$", r"how do i \1"),
        (r"^((?:in|on|at|for|from|with|to|until|since) )?which\b", r"\1what"),
        (r"\bdo (i|we|you) (?:have|need) to\b|\bam (i) (?:required|obliged) to\b", r"must \1\2"),
        (r"\bis it (?:necessary|required|mandatory) (?:for me )?to\b", "must i"),
        (r"^what (?:must i do|steps must i take) to\b", "how do i"),
        (rf"\b(how|where)((?: \w+){{0,2}}?) {_ASKING} (?=i |we |you |one )", r"\1\2 do "),
        (rf"\bwho {_ASKING} (?=i |we |one )", "who do "),
        (
            r"^what (?:is|are) the (?:(?:best|easiest|right|correct|proper) )?(?:ways?|steps|procedure|process) to\b",
            "how do i",
        ),
        (r"\bhow to\b", "how do i"),
        (rf"\b(?:is|would) it (?:be )?{_ALLOWED} (?:(?:for me )?to\b|if i\b)|\bis there (?:a|any) way to\b", "can i"),
        (r"\bmay i\b|\bam i (?:able|allowed|permitted) to\b", "can i"),
        (r"^(?:at )?what time\b", "when"),
        (r"^what is the (deadline|date|time) (?=for|of)", r"when is the \1 "),
        (r"^(?:what (?:is|are) )?(?:the )?(?:price|cost)s? (?:of|for)\b|^how much are\b", "how much is"),
        (r"^how much (?:would|will) (.+) be$", r"how much is \1"),
        (
            r"^how much (?:do|must|will|would) i (?:have to )?pay for\b|^(?:what|how much) do you charge for\b",
            "how much is",
        ),
        (r"^how much (?:(?:does|would|will) it cost |is it )?to (\w+?)e?\b", r"how much is \1ing"),
        (r"^(?:what|how much) (?:does|do|would|will) (.+) cost$", r"how much is \1"),
        (r"^how much is (?:the|an?) ", "how much is "),
        (r"^what do you charge\b", "how much do you charge"),
        (r"^where (is|are) (.+) (?:located|situated)$", r"where \1 \2"),
        (r"^what is the location of\b", "where is"),
        (r"^what is the (?:meaning|definition) of (.+)$", r"what does \1 mean"),
        (r"^what happens (?=if |when )", "what "),
        (r"^how large\b", "how big"),
        (r"^how (?:quickly|rapidly)\b", "how fast"),
        (r"^how much time\b", "how long"),
        (
            rf"^how many (?:(?:business|working|calendar) )?{_UNITS}s (?=(?:do|does|did|will|would) .*\b(?:take|last)\b)"
            rf"(?!.*\b(?:an?|per|each|every) {_UNITS}\b)",
            "how long ",
        ),
        (r"^(?:what|when) (?:is|are) (?:your|the) (?:opening|business|office|store|shop) hours\b", "when are you open"),
        (r"^what are your hours\b", "when are you open"),
        (rf"\b({'|'.join(SINGULAR_TIMES.values())})s\b", r"\1"),
        (r"^where do (?:i|we|one) (?:find|locate)\b|^where are\b", "where is"),
        (rf"\b(\w+) (?:for|of) ({_PERIODS})\b(?! \d)", r"\2 \1"),
        (rf"^(?:what|which) ((?:\w+ ){{1,4}})do you {_SERVICES}e?$", r"what \1is \2ed"),
        (rf"^(?:what|which) ((?:\w+ ){{1,4}})(?:is|are) {_SERVICES}ed$", r"what \1is \2ed"),
        (
            rf"^(?:is|are) {_SINGLE}(.+) {_SERVICES}ed((?! to\b) .+)?$",
            r"is \1\3 \2ed",
        ),
        (r"^(?:do|can|will) you (?:ship|deliver) to\b", "you ship to"),
        (r"\bdelivery(?= (?:to|costs?|fees?|charges?|options?|methods?|address|take|free)\b)", "shipping"),
        (rf"^(?:explain|describe|outline|clarify|tell me|tell me about) (?:your|the) (?={_RULES}\b)", "what is the "),
        (rf"^what are (?=(?:your|the) {_RULES}\b)", "what is "),
        (r"^how (?:frequently|regularly)\b", "how often"),
        (r"\b(?:turn|switch) on (?=\w)", "enable "),
        (r"\b(?:turn|switch) off (?=\w)", "disable "),
        (r"^(?:is|are) (.+?) able to (?=\w)", r"can \1 "),
        (r"^do you (?:offer|provide) (?=an? )", "is there "),
        # The user asks the business itself: its policy is the policy.
        (rf"\byour (?={_OFFER}\b)", "the "),
        # After the offers with an article, which `is there` replaces.
        (rf"^do you {_SERVICES}e? {_SINGLE}(.+)$", r"is \2 \1ed"),
        (r"^how high (?=is|are|was)", "how tall "),
        *((rf"^who (?:is|was) the {maker.split()[0]} of\b", f"who {maker.split()[1]}") for maker in _MAKERS.split("|")),
        *(
            (rf"^what (is|was) the {measure.split()[0]} of\b", rf"how {measure.split()[1]} \1")
            for measure in _MEASURES.split("|")
        ),
        (r"^(?:do|does|if|whether)\b", ""),
        (r"\b(?:please|exactly|actually|just|usually|normally|typically|generally)\b", ""),
        (r"\b(do|can) (?:we|one)\b", r"\1 i"),
        (r"\b(cent|met|lit|theat|fib|calib)re(s?)\b", r"\1er\2"),
        (r"\b(\w{3,})our(s?|ed|ing|ite|ites)\b", r"\1or\2"),
        (r"\b(\w{3,})(?:is|iz)(e[sd]?|ing|ation|ations)\b", r"\1iz\2"),
        (r"(\w{2,}[aeiou])([bdglmnprt])\2(?=(?:ed|ing|ation)\b)", r"\1\2"),
    )
)
_NOISE = re.compile(r"[\W_]+")


@cached_by_text
def without_courtesies(question: str) -> str:
    """Return a question without `please` and similar words: `Can you explain it?` for `Can you please explain it to me?`."""
    plain = question
    for courtesy, replacement in _COURTESIES:
        plain = courtesy.sub(replacement, plain)
    return plain.strip() or question


@cached_by_text
def normal_wording(question: str) -> str:
    """Return a question in a normal form: `how do i pay` for `Can you tell me how I could pay?`. Only for comparisons."""
    plain = without_courtesies(without_fillers(question)).lower().replace("’", "'").strip(" ?!.")
    for form, replacement in _FORMS:
        plain = form.sub(replacement, plain).strip()
    return " ".join(NUMBER_WORDS.get(word, word) for word in _NOISE.sub(" ", plain).split())


def are_equal_wordings(question: str, other: str) -> bool:
    """Whether two questions differ in the form of asking only."""
    return normal_wording(question) == normal_wording(other) != ""
