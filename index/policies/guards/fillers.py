"""Removes greetings, thanks, and hesitations, which carry no content, before guards compare two questions."""

import re

from kvproxy.index.policies.guards.words import cached_by_text

_BREAK = r"[\s,.!:;–—-]*"
_OPENING = re.compile(
    r"^\W*(?:(?:hi|hello|hey|hiya|howdy|greetings)(?: there| all| everyone| team| guys| folks)?"
    r"|good (?:morning|afternoon|evening|day)|u+[mh]+|er+m*|hm+|ah+|oh|well|so|ok(?:ay)?|right|excuse me|pardon me"
    r"|(?:morning|afternoon|evening)(?=[!,.])"
    r"|sorry(?: (?:to|for) (?:bother(?:ing)?|troubl(?:e|ing)|disturb(?:ing)?|interrupt(?:ing)?)(?: you)?)?|but"
    r"|ye(?:ah|p|s)"
    r"|i(?: am|'m) (?:new|a beginner)(?: (?:to|at|with) (?:this|it|all this))?(?: here)?(?=[.,;!])"
    r"|(?:just )?(?:a |one |another )?(?:(?:quick|short|small|simple|silly|stupid|dumb|basic|random) )?question(?: for you)?"
    r"|(?:(?:on )?(?:an?|one|another)? ?(?:(?:more|other|last|final|different|separate|unrelated|new) )+"
    r"(?:question|thing|topic|subject|note)|another (?:question|thing)|(?:totally |completely )?(?:unrelated|off[- ]topic)"
    r"|before i (?:go|forget)|while i(?:'m here|'m at it|'ve got you))(?=\s*[,.:;!–—-])"
    r"|(?:(?:(?:can|could|would) you )?(?:please )?(?:help me with|answer) (?:this|the following)(?: question)?|query)(?=\s*:)"
    r"|(?:i(?: am|'m| was) )?just (?:wondering|curious)"
    r"|i(?: am|'m| was) (?:wondering|curious)|(?:just )?(?:wondering|curious|checking|asking)|btw|by the way|please|pls|plz)"
    + r"(?:(?=[\s,.!:;?–—-]))" + _BREAK,
    re.IGNORECASE,
)  # fmt: skip
_CLOSING = re.compile(
    r"[\s,.!?:;–—-]+(?:(?:many )?thanks?(?: you)?(?: (?:so|very) much| a lot| in advance| again)?|thx|ty|cheers|tia|please|pls"
    r"|plz|u+[mh]+|lol|btw|by the way)\W*$",
    re.IGNORECASE,
)
_HESITATION = re.compile(r"(?:(?<=\s)|(?<=,))(?:u+[mh]+|er+m*|hm+)[\s,.]+", re.IGNORECASE)


@cached_by_text
def without_fillers(text: str) -> str:
    """Return a question without fillers at its ends; the whole text if nothing else remains."""
    rest = _HESITATION.sub("", text)
    while (shorter := _OPENING.sub("", rest)) != rest:
        rest = shorter
    while (shorter := _CLOSING.sub("?" if rest.rstrip()[-1:] == "?" or "?" in rest[-20:] else "", rest)) != rest:
        rest = shorter
    return rest if any(letter.isalnum() for letter in rest) else text
