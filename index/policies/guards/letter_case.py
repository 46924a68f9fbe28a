import re
from collections import defaultdict

from kvproxy.index.policies.guards.tokenization import cached_by_text

_TOKEN = re.compile(r"[^\s,;:!?\"“”()\[\]]+")
_CODE = re.compile(r"[\\%+=_<>{}$@#^~|*/]|^-")
_UNIT = re.compile(r"[numcdkgtp]?i?(?:b|w|v|a|j|hz|ev|g|m|s|l|pa|n|bps|wh|ah)", re.IGNORECASE)
_ENDS = ".…"
_TITLE_SHARE = 0.7
_LONGEST_CODE = 4
_CAPITONYMS = frozenset(
    "polish turkey china march may august us it who job nice reading mobile bath cologne lima aids ram swift rust java".split()
)
# Products and companies that are also words. A text in lower case may mean the name.
_NAMES = frozenset(
    "apple amazon windows word excel access outlook teams edge chrome safari shell target gap orange oracle visa chase discover"
    " square stripe zoom slack discord signal meta python ruby go dart julia pandas bash".split()
)


def case_differs(question: str, cached_question: str) -> bool:
    r"""Whether units, codes, or names differ in letter case: `5 mW` and `5 MW`, `\d` and `\D`, `Polish` and `polish`.

    The first word of each sentence is ignored, and so are names if a question has no capital letters.
    """
    ours, theirs = _written_forms(question), _written_forms(cached_question)
    typed = _is_uniform(question) or _is_uniform(cached_question)
    shouted = question.isupper() or cached_question.isupper()
    for word in ours.keys() & theirs.keys():
        if ours[word] == theirs[word]:
            continue
        forms = ours[word] | theirs[word]
        if any(_CODE.search(form) or form.is_unit for form in forms):
            return True
        mixed = len(word) <= _LONGEST_CODE and sum(form != word for form in forms) > 1
        if not shouted and (mixed or word in _CAPITONYMS or (word in _NAMES and not typed)):
            return True
    return False


class _WrittenForm(str):
    is_unit = False


@cached_by_text
def _written_forms(text: str) -> dict[str, frozenset[_WrittenForm]]:
    found: defaultdict[str, set[_WrittenForm]] = defaultdict(set)
    starts, before = True, ""
    for token in _TOKEN.findall(text):
        written = token.rstrip(_ENDS)
        number = re.match(r"\d+(?:[.,]\d+)*(?=[^\W\d])", written)
        form = _WrittenForm(written[number.end() :] if number else written)
        form.is_unit = (bool(number) or before[-1:].isdigit()) and _UNIT.fullmatch(form) is not None
        plain = starts and (form[1:] == form[1:].lower() and not _CODE.search(form))
        if any(letter.isalpha() for letter in form) and not plain:
            found[form.lower()].add(form)
        starts, before = token != written or token.endswith(("!", "?")), written
    return {word: frozenset(forms) for word, forms in found.items()}


@cached_by_text
def _is_uniform(text: str) -> bool:
    words = [token for token in _TOKEN.findall(text)[1:] if any(letter.isalpha() for letter in token)]
    if all(word == word.lower() for word in words) or text == text.upper():
        return True
    return bool(sum(word[:1].isupper() for word in words) >= _TITLE_SHARE * len(words))
