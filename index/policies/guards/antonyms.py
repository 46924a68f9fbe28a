"""Pairs of words that turn a question into its opposite."""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

_PAIRS = """
enable disable|enabled disabled|on off|start stop|open close|allow deny|allow block|allow forbid|accept reject|accept refuse
add remove|add delete|insert delete|create delete|create destroy|increase decrease|raise lower|grow shrink|expand collapse
up down|upgrade downgrade|upload download|import export|read write|load save|load unload|mount unmount|lock unlock
encrypt decrypt|encode decode|compress decompress|zip unzip|install uninstall|connect disconnect|attach detach|show hide
push pull|send receive|buy sell|lend borrow|win lose|gain lose|before after|first last|earliest latest|oldest newest
best worst|good bad|better worse|big small|bigger smaller|large small|larger smaller|long short|longer shorter|high low
higher lower|highest lowest|fast slow|faster slower|hot cold|warm cold|warmer colder|early late|easy hard|easy difficult
cheap expensive|more less|more fewer|most least|most fewest|maximum minimum|max min|many few|above below|over under
inside outside|in out|input output|inbound outbound|incoming outgoing|left right|north south|east west|top bottom
front back|forward backward|ascending descending|public private|internal external|local remote|true false|yes no|positive negative
valid invalid|legal illegal|safe unsafe|safe dangerous|possible impossible|visible invisible|include exclude
included excluded|subscribe unsubscribe|follow unfollow|register unregister|login logout|activate deactivate|freeze unfreeze
ban unban|pin unpin|do undo|zip unzip|tag untag|bar unbar
advantages disadvantages|advantage disadvantage|pros cons|benefits drawbacks|benefits risks|strengths weaknesses|causes effects
male female|men women|man woman|boy girl|boys girls|husband wife|father mother|son daughter|brother sister|young old
younger older|dead alive|live die|rich poor|strong weak|heavy light|wet dry|full empty|deep shallow|thick thin|wide narrow
synchronous asynchronous|sync async|static dynamic|mutable immutable|client server|encoder decoder|prefill decode
even odd|plus minus|multiply divide|sum difference|merge split|join split|lossy lossless|horizontal vertical|rows columns
row column|parent child|ancestor descendant|host guest|sender receiver|teacher student|employer employee|buyer seller
import export|absolute relative|symmetric asymmetric|singular plural|past future|summer winter|day night|morning evening
approve reject|approve deny|grant revoke|hire fire|arrive depart|enter leave|enter exit|push pop|commit revert|love hate
like dislike|agree disagree|remember forget|permit prohibit|required optional|mandatory optional|cause prevent|prevent allow
wake sleep|begin end|begins ends|starting stopping|starting ending|rise fall|ascend descend|appear disappear|succeed fail
pause resume|promote demote|accept decline|lighter darker|light dark|rising falling|mute unmute|nothing everything
succeeded failed|passing failing|gained lost|winner loser|faster slower|forward back|roll rollback|sunrise sunset|debit credit
success failure|pass fail|exact semantic|exact approximate|hit miss|cold warm|used free|busy idle
for against|production staging|soluble insoluble|credit debit|married single|adults children|adult child|started finished
older newer|during after|during before|into from
within after|within outside|until after|since until|since before|born died|birth death|arrival departure|victory defeat
compress extract|create drop|append prepend|enqueue dequeue|wrap unwrap|stack queue|head tail|leading trailing|prefix suffix
uppercase lowercase|upper lower|inner outer|width height|source destination|request response|ingress egress|parallel sequential
primary secondary|primary replica|stateful stateless|supervised unsupervised|train test|training inference|training testing
precision recall|mean median|median mode|average maximum|average minimum|average worst|average best|maximize minimize
greater less|synonyms antonyms|formal casual|am pm|bold italic|free paid|deposit withdraw|deposit withdrawal|gross net
asset liability|assets liabilities|income expense|income expenses|landlord tenant|plaintiff defendant|prosecution defense
guilty innocent|doctor patient|youngest oldest|king queen|uncle aunt|hard soft|quiet loud|call put|bull bear|bullish bearish
boiling freezing|freeze melt|freeze thaw|condense evaporate|inhale exhale|acid base|acidic alkaline|anode cathode|cation anion
fill drain|inflate deflate|capital interest|prime composite|vegan vegetarian
single multi|mono stereo|radius diameter|radius circumference
diameter circumference|argmax argmin|max argmin|catch throw|keep discard|reset restart|both either|both neither|lent borrowed
ever always|most some|sometimes usually|give receive|pay receive|give get|rarely usually|often rarely|always sometimes
either neither|exactly least|exactly most|but including|except including|besides except|wins nominations|won nominated
"""


def _table(pairs: Iterable[str]) -> dict[str, frozenset[str]]:
    table: dict[str, set[str]] = {}
    for pair in pairs:
        one, other = pair.split()
        table.setdefault(one, set()).add(other)
        table.setdefault(other, set()).add(one)
    return {word: frozenset(opposites) for word, opposites in table.items()}


OPPOSITES = _table(pair for pair in _PAIRS.replace("\n", "|").split("|") if pair)
"""Word -> its opposites in questions."""


@cache
def antonyms() -> Mapping[str, frozenset[str]]:
    """Return word -> antonyms in WordNet that `OPPOSITES` does not have."""
    lines = (Path(__file__).parent / "antonyms.txt").read_text().splitlines()
    return _table(line for line in lines if not line.startswith("#"))
