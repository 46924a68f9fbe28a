"""Questions about a direction, made from templates that no training and no guard has seen.

`make_swaps()` returns 300 pairs that exchange two names, units, languages, products, or a noun and its adjective, and
`make_rewordings()` returns 100 pairs that keep the direction. Run as a module, it prints what the default policy serves.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice

Pair = dict[str, str]

_COUNTRIES = (
    "Spain Spanish|Kenya Kenyan|Japan Japanese|Norway Norwegian|the UK British|India Indian|the US American|Canada Canadian"
    "|Peru Peruvian|Poland Polish|Greece Greek|Nepal Nepalese"
)
_GROUPS = {
    "city": "Oslo|Rome|Porto|Quito|Lima|Ghent|Kraków|New York|Cape Town|Osaka|Riga|Perth",
    "unit": "teaspoons|tablespoons|cups|fluid ounces|pints|millilitres|gallons|litres|quarts|drops",
    "length": "furlong|fathom|mile|kilometre|yard|metre|chain|nautical mile|league|foot",
    "language": "Welsh|Basque|Finnish|Urdu|Tamil|Greek|Danish|Catalan|Swahili|Korean",
    "product": "Trello|Jira|Notion|Airtable|Dropbox|OneDrive|Evernote|Todoist|Zotero|Mendeley",
    "format": "CSV|Parquet|JSON|Avro|XML|YAML|TOML|INI|ORC|Protobuf",
    "animal": "dog|cat|ferret|rabbit|parrot|hamster|horse|goat|hen|pig",
    "place": "the harbour|the city centre|the main station|the old town|the ferry terminal|the university|the stadium|the beach"
    "|the business park|the fish market",
    "team": "Ajax|Porto|Celtic|Benfica|Roma|Lazio|Arsenal|Everton|Napoli|Leeds",
}

_SWAPS: tuple[tuple[str, str, str], ...] = (
    ("country", "Can I drive in {0} with a {1'} licence?", "Can I drive in {1} with a {0'} licence?"),
    ("country", "How do I get a {0'} work permit from {1}?", "How do I get a {1'} work permit from {0}?"),
    ("city", "When does the first coach from {0} arrive in {1}?", "When does the first coach from {1} arrive in {0}?"),
    ("unit", "How many {0} fit into {1}?", "How many {1} fit into {0}?"),
    ("length", "How many {0}s make up one {1}?", "How many {1}s make up one {0}?"),
    ("language", "Which app turns {0} speech into {1} text?", "Which app turns {1} speech into {0} text?"),
    ("product", "Does {0} import boards that were exported from {1}?", "Does {1} import boards that were exported from {0}?"),
    ("format", "Is {0} smaller on disk than {1}?", "Is {1} smaller on disk than {0}?"),
    ("animal", "Can a {0} catch a cold from a {1}?", "Can a {1} catch a cold from a {0}?"),
    ("place", "Which tram runs to {0} from {1}?", "Which tram runs to {1} from {0}?"),
)  # fmt: skip

_REWORDINGS: tuple[tuple[str, str, str], ...] = (
    ("country", "Can I drive in {0} with a {1'} licence?", "With a {1'} licence, can I drive in {0}?"),
    ("country", "How do I get a {0'} work permit from {1}?", "From {1}, how do I get a {0'} work permit?"),
    ("country", "Can I apply in {0} for a {1'} passport?", "Can I apply for a {1'} passport in {0}?"),
    ("country", "Can I open a {0'} bank account from {1}?", "Is it possible to open a {0'} bank account from {1}?"),
    ("city", "What is the cheapest flight from {0} to {1}?", "What is the cheapest flight to {1} from {0}?"),
    ("city", "How do I get from {0} to {1}?", "How do I get to {1} from {0}?"),
    ("city", "How long is the train ride from {0} to {1}?", "How long does the train take from {0} to {1}?"),
    ("length", "How many {0}s are in a {1}?", "How many {0}s does a {1} have?"),
    ("unit", "How do I convert {0} to {1}?", "How do I convert {0} into {1}?"),
    ("unit", "How do I convert {0} to {1}?", "How can I convert from {0} to {1}?"),
    ("language", "How do I translate a letter from {0} into {1}?", "How do I translate a letter into {1} from {0}?"),
    ("language", "Which app translates from {0} to {1}?", "Which app can translate {0} to {1}?"),
    ("product", "How do I move my notes from {0} to {1}?", "How do I move my notes to {1} from {0}?"),
    ("product", "Can {0} import files from {1}?", "Can files from {1} be imported by {0}?"),
    ("format", "How do I turn {0} into {1}?", "How can I convert {0} to {1}?"),
    ("format", "Is {0} smaller than {1}?", "Compared with {1}, is {0} smaller?"),
    ("animal", "Can a {0} eat {1} food?", "Is {1} food okay for a {0} to eat?"),
    ("place", "Which tram runs to {0} from {1}?", "Which tram runs from {1} to {0}?"),
    ("place", "How do I walk from {0} to {1}?", "What is the way to walk to {1} from {0}?"),
    ("team", "Did {0} beat {1} in the last match?", "Was {1} beaten by {0} in the last match?"),
)


def make_swaps() -> list[Pair]:
    return [pair for group, one, other in _SWAPS for pair in islice(_fill(group, one, other), 30)]


def make_rewordings() -> list[Pair]:
    return [pair for group, one, other in _REWORDINGS for pair in islice(_fill(group, one, other), 5)]


def _fill(group: str, one: str, other: str) -> Iterator[Pair]:
    members = (_COUNTRIES if group == "country" else _GROUPS[group]).split("|")
    for number, pair in enumerate(combinations(members, 2)):
        values = _values(group, pair if number % 2 else pair[::-1])
        yield {"a": _format(one, values), "b": _format(other, values)}


def _values(group: str, pair: Sequence[str]) -> dict[str, str]:
    if group != "country":
        return {str(place): name for place, name in enumerate(pair)}
    split = [name.rsplit(" ", 1) for name in pair]
    return {
        f"{place}{mark}": word for place, words in enumerate(split) for mark, word in zip(("", "'"), words, strict=True)
    }


def _format(template: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template.replace("foots", "feet").replace("a I", "an I").replace("a A", "an A")
