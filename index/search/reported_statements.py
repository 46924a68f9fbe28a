"""Removes phrases before a fact that users report, such as *Here is what I know: ..* and *I think that ..*."""

import re

_USER = r"(?:i|we)(?:'ve| have| was| were|'m| am|'re| are)?(?: (?:also|already|just|only|do|now))?"
_REPORT = re.compile(
    r"^\W*(?:(?:and|but|so|ok|okay|well|also|now|yes|no)\b[, ]*)*(?:"
    r"[^:.?!\n]{1,80}:\s"  # `Here is what I know: `
    r"|(?:as far as|as|from what|for all|that's what|that is what|what) " + _USER + r" \w+(?: (?:about|of|from) [\w ]{1,30})?,? "
    r"|(?:in|to|from) (?:my|our) (?:opinion|experience|knowledge|understanding|view|notes)\b,? "
    r"|according to (?:my|our) [\w ]{1,30}, "
    r"|" + _USER + r" (?:know|knew|think|thought|believe|guess|assume|understand|understood|gather|heard|reckon|suppose|sure"
    r"|told)\b(?! so\b| not\b)(?: about this)?(?: that)? "
    r"|" + _USER + r" (?:read|found|find|learn(?:ed|t)?|see|saw|said|remember|noticed|checked|mean|mentioned)(?: out)? that "
    r"|(?:my|our) \w+(?: \w+)? (?:says?|said|states?|reads?|shows?|tells?|told)(?: me| us)?(?: that)? "
    r")(?=\w)",
    re.IGNORECASE,
)  # fmt: skip


def without_report(statement: str) -> str:
    """Return the reported fact of a statement: `It is in the menu.` for `My notes say that it is in the menu.`"""
    while (fact := _REPORT.sub("", statement, count=1)) != statement:
        statement = fact
    return statement
