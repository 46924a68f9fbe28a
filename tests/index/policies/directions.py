"""Questions about a direction, made from templates that the verifier was not trained on.

`make_swaps()` returns 300 pairs that exchange two names, units, languages, products, or a noun and its adjective, and
`make_rewordings()` returns 100 pairs that keep the direction. The second set of templates was written after the guard.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import combinations, islice, product
from pathlib import Path

Pair = dict[str, str]
_DATA = Path(__file__).parents[1] / "data"


def read_pairs(name: str) -> list[Pair]:
    """Return the hand-written pairs of a file: `rewordings`, `near_misses`, or `opposites`."""
    return [json.loads(line) for line in (_DATA / f"{name}.jsonl").read_text("utf-8").splitlines()]


def free_near_misses() -> list[Pair]:
    """Return pairs of a question and one that differs in a fact, in free wordings."""
    return [
        {"a": one, "b": other}
        for group in _free_questions()
        for one, other in [*product(group["same"], group["near"]), *combinations(group["near"], 2)]
    ]


def free_rewordings() -> list[Pair]:
    return [{"a": one, "b": other} for group in _free_questions() for one, other in combinations(group["same"], 2)]


def _free_questions() -> list[dict[str, list[str]]]:
    return [json.loads(line) for line in (_DATA / "free_questions.jsonl").read_text("utf-8").splitlines()]


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
    "money": "dollars|pesos|rupees|zloty|krone|francs|euros|yen|lira|rand",
    "os": "Windows|macOS|Ubuntu|Android|iOS|Fedora|ChromeOS|FreeBSD",
    "lib": "React|Angular|Vue|Svelte|jQuery|Ember|Preact|Solid",
    "role": "landlord|tenant|employer|employee|teacher|student|doctor|patient|buyer|seller",
    "firm": "Nestlé|Unilever|Siemens|Bosch|Oracle|SAP|Shell|BP|Sony|Philips",
    "stuff": "butter|margarine|honey|sugar|yoghurt|cream|milk|oil|flour|starch",
    "pol": "Merkel|Putin|Blair|Bush|Thatcher|Reagan|Obama|Castro",
    "time": "CET|PST|GMT|IST|JST|EST",
    "measure": "bits|bytes|nibbles|kilobytes|words|pages|sectors|blocks",
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


_SECOND_SWAPS: tuple[tuple[str, str, str], ...] = (
    ("country", "Can a {0'} citizen retire in {1}?", "Can a {1'} citizen retire in {0}?"),
    ("country", "Does {0} recognise {1'} university degrees?", "Are {0'} university degrees recognised in {1}?"),
    ("country", "How long can {0'} tourists stay in {1}?", "How long may {1'} tourists stay in {0}?"),
    ("money", "I have 100 {0}. How many {1} do I get for them?", "I have 100 {1}. How many {0} do I get for them?"),
    ("money", "What is the exchange rate from {0} to {1}?", "What is the exchange rate to {0} from {1}?"),
    ("os", "How do I share files from {0} with a {1} machine?", "How do I share files from {1} with a {0} machine?"),
    ("os", "Can I run {0} apps on {1}?", "Is it possible to run {1} apps on {0}?"),
    ("lib", "How do I embed a {0} component in a {1} app?", "How can I embed a {1} component into a {0} app?"),
    ("lib", "Should I rewrite my {0} code in {1}?", "Should I rewrite my {1} code in {0}?"),
    ("role", "Can a {0} sue a {1} for damages?", "Can a {1} sue a {0} for damages?"),
    ("role", "What must a {0} tell a {1}?", "What does a {1} have to tell a {0}?"),
    ("firm", "Why did {0} sell its shares to {1}?", "Why did {1} sell its shares to {0}?"),
    ("firm", "How much did {0} pay for {1}?", "How much did {1} pay for {0}?"),
    ("stuff", "How do I replace {0} with {1} in a cake?", "How do I replace {1} with {0} in a cake?"),
    ("stuff", "Can I use {0} instead of {1}?", "Can {1} be used instead of {0}?"),
    ("pol", "What did {0} think about {1}?", "What did {1} think about {0}?"),
    ("pol", "Which gift did {0} give {1}?", "Which gift did {1} give {0}?"),
    ("time", "What is 9 am {0} in {1}?", "What is 9 am {1} in {0}?"),
    ("measure", "How many {0} are there in 8 {1}?", "How many {1} are there in 8 {0}?"),
    ("measure", "How do I turn {0} into {1}?", "What is the formula for turning {1} into {0}?"),
)

_SECOND_REWORDINGS: tuple[tuple[str, str, str], ...] = (
    ("country", "Can a {0'} citizen retire in {1}?", "Can I retire in {1} as a {0'} citizen?"),
    ("country", "How long can {0'} tourists stay in {1}?", "For how long may {0'} tourists stay in {1}?"),
    ("country", "Does {1} recognise {0'} university degrees?", "Are {0'} university degrees recognised in {1}?"),
    ("money", "What is the exchange rate from {0} to {1}?", "What is the {0} to {1} exchange rate?"),
    ("money", "How do I convert {0} to {1}?", "How can I change {0} into {1}?"),
    ("os", "Can I run {0} apps on {1}?", "Is it possible to run {0} apps on {1}?"),
    ("os", "How do I switch from {0} to {1}?", "What should I do to switch to {1} from {0}?"),
    ("lib", "How do I embed a {0} component in a {1} app?", "In a {1} app, how can I embed a {0} component?"),
    ("lib", "Should I rewrite my {0} code in {1}?", "Is it a good idea to rewrite my {0} code in {1}?"),
    ("role", "Can a {0} sue a {1}?", "Can a {1} be sued by a {0}?"),
    ("firm", "Why did {0} buy shares of {1}?", "For what reason did {0} buy {1} shares?"),
    ("stuff", "How do I replace {0} with {1} in a cake?", "In a cake, how can I replace {0} with {1}?"),
    ("stuff", "Can I use {0} instead of {1}?", "Instead of {1}, can I use {0}?"),
    ("pol", "What did {0} think about {1}?", "What did {0} think of {1}?"),
    ("time", "What is 9 am {0} in {1}?", "9 am {0} is what time in {1}?"),
    ("measure", "How many {0} are there in 8 {1}?", "8 {1} are how many {0}?"),
    ("measure", "How do I turn {0} into {1}?", "How can I convert {0} to {1}?"),
    ("unit", "Convert 5 {0} into {1}", "How many {1} is 5 {0}?"),
    ("city", "When does the last bus from {0} to {1} leave?", "When does the last bus leave for {1} from {0}?"),
    ("language", "How do I translate {0} subtitles into {1}?", "How can {0} subtitles be translated into {1}?"),
)


def make_swaps(second: bool = False) -> list[Pair]:
    return _make(_SECOND_SWAPS if second else _SWAPS, 300)


def make_rewordings(second: bool = False) -> list[Pair]:
    return _make(_SECOND_REWORDINGS if second else _REWORDINGS, 100)


def _make(templates: Sequence[tuple[str, str, str]], count: int) -> list[Pair]:
    return [pair for template in templates for pair in islice(_fill(*template), count // len(templates))]


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
