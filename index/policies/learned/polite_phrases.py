"""Removes the phrases with which models begin and end an answer, such as *Sure!*, because they state no facts."""

import re

from kvproxy.index.policies.guards.words import cached_by_text

_HELP = r"(?:happy|glad) to (?:help|assist)(?: you)?(?: with that)?"
_HOW = r"(?:how(?: it works| to do (?:it|that|this))?|the answer|what (?:you )?(?:to|can|should|need to) do)"
_OPENINGS = (
    r"sure(?: thing)?|of course|certainly|absolutely|definitely|gladly|no (?:problem|worries)(?: at all)?",
    r"(?:hi|hello|hey)(?: there)?",
    r"thank(?:s| you)(?: (?:so|very) much)?(?: for (?:asking|reaching out|your (?:question|message)))?",
    r"(?:that(?:'s| is) an? |what an? )?(?:good|great|excellent) question",
    rf"(?:(?:i am|i'm|i'd be|i would be|always) )?{_HELP}",
    rf"(?:to do (?:that|this|so)|here(?:'s| is) {_HOW}|the answer is|in short)(?=:)",
)
_OFFER = r"(?:please )?(?:feel free to (?:ask|reach out)|(?:just )?let me know|don't hesitate to ask)"
_NEED = r"you (?:have|need) (?:any |anything )?(?:(?:other|more|further|else) ?)?(?:questions?|help|assistance|information)?"
_CLOSINGS = (
    rf"{_OFFER}(?: if (?:(?:anything|something|that|this) (?:is|isn't|is not) (?:un)?clear|{_NEED}))?",
    r"(?:i )?hope (?:this|that|it) helps",
    r"(?:is there )?anything else(?: (?:that )?i can (?:help|assist)(?: you)?(?: with)?)?",
    rf"(?:(?:i am|i'm) )?{_HELP}",
    r"thank you|thanks",
)
_OPENING = re.compile(rf"^\W*(?:{'|'.join(_OPENINGS)})[,.!:;–—-]+\s*", re.IGNORECASE)
_CLOSING = re.compile(
    rf"(?:(?<=[.!?])|(?<=[.!?]\s)|(?:^|\s)[–—-]|[,;])\s*(?:{'|'.join(_CLOSINGS)})[.!?\s]*$", re.IGNORECASE
)


@cached_by_text
def without_polite_phrases(answer: str) -> str:
    """Return an answer without polite phrases at its ends; the whole answer if nothing else remains."""
    rest = answer
    for phrase in (_OPENING, _CLOSING):
        while (shorter := phrase.sub("", rest)) != rest:
            rest = shorter
    return rest if any(letter.isalnum() for letter in rest) else answer
