import re

from kvproxy.index.policies.guards.tokenization import cached_by_text

_UNIT = "(word|line|sentence|paragraph|page|point)s?"
_LENGTHS = (
    re.compile(rf"\b(\d+|two|three|four|five|six|seven|eight|nine|ten)[ -]{_UNIT}\b"),
    re.compile(
        rf"\b(?:in|with|within|under|about|than|exactly|most) (an?|one|few|several|a few|a couple of)[ -]{_UNIT}\b"
    ),
)
_FORMS = {
    "brief": r"brief(?:ly)?|in short|concise(?:ly)?|in a nutshell|tl;?dr|in brief",
    "detail": r"in (?:\w+ )?details?|detailed|in[- ]depth|thorough(?:ly)?|comprehensive(?:ly)?|at length",
    "steps": r"step[- ]by[- ]step",
    "plain": r"(?:simple|plain|layman'?s?|easy|everyday) (?:terms|words|english|language)|eli5"
    r"|like i'?m (?:five|5|\w+ years? old)"
    r"|(?:to|for) (?:an? )?(?:\w+ )?(?:child(?:ren)?|kids?|five[- ]year[- ]old|beginners?|laym[ae]n|dumm(?:y|ies))",
    "expert": r"(?:to|for) (?:an? )?(?:\w+ )?(?:experts?|specialists?|professionals?|phd students?)",
    "examples": r"examples?",
    "bullets": r"bullet(?:ed|s)?(?: points?| list)?",
    "table": r"(?:as|in|into) (?:a |an )?(?:table|tabular)(?: form)?",
    **{name: rf"(?:as|in|into|to) {name}" for name in ("json", "yaml", "xml", "csv", "markdown", "html")},
}  # fmt: skip
_FORM = re.compile("|".join(rf"(?P<{name}>\b(?:{pattern})\b)" for name, pattern in _FORMS.items()))


def answer_format_differs(question: str, cached_question: str) -> bool:
    """Whether the questions ask for different lengths, styles, or formats: `explain it step by step` and `explain it`."""
    return _requested_formats(question) != _requested_formats(cached_question)


@cached_by_text
def _requested_formats(text: str) -> set[str]:
    plain = text.lower().replace("’", "'")
    lengths = {f"{number} {unit}" for length in _LENGTHS for number, unit in length.findall(plain)}
    return lengths | {str(match.lastgroup) for match in _FORM.finditer(plain)}
