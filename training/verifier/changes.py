"""Makes pairs of questions that look alike and need different answers, and rewordings that need the same one.

Labelled pairs from people hold few of the first kind, which are what a cache must not get wrong: `enable 2FA` beside
`disable 2FA`. Each change is made twice, on questions that people asked and on templates, and half of the changed
questions are reworded as well, so that what tells the two kinds apart is the change and not the wording.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence

from kvproxy.index.evaluation.labelled_pairs import Pair
from kvproxy.index.policies.guards.negation_and_opposites import read_opposites
from training.verifier.rewording import reword
from training.verifier.templates import TEMPLATES
from training.verifier.words import GROUPS

Change = Callable[[str, random.Random], str | None]

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w])")
_YES_NO = re.compile(
    r"^((?:is|are|was|were|can|could|should|would|will|does|did|has|have|must) (?:it|i|you|we|they|he|she|there|\w+) )(?!not\b)",
    re.I,
)
_HOW_TO = re.compile(r"^(how (?:do|can|should) (?:i|you|we) |how to )(?!not\b)", re.I)
_NEGATED = re.compile(r" not\b|n't\b", re.I)
_FROM_TO = re.compile(r"\bfrom (\w+) to (\w+)\b|\b(\w+) (?:to|into|than|before|without|over|instead of) (\w+)\b", re.I)
_SLOT = re.compile(r"\{([^}]+)\}")
_ASKING = {
    "how": ("why", "when", "where"),
    "why": ("how", "when"),
    "when": ("where", "how", "why"),
    "where": ("when", "how"),
    "who": ("when", "where"),
}


def number(text: str, rng: random.Random) -> str | None:
    """Another number in the place of one; a year stays a year."""
    found = list(_NUMBER.finditer(text))
    if not found:
        return None
    at = rng.choice(found)
    return text[: at.start()] + _other_number(at.group(), rng) + text[at.end() :]


def _other_number(old: str, rng: random.Random) -> str:
    if "." in old:
        whole, part = old.split(".")
        return f"{whole}.{int(part) + rng.randint(1, 9)}"
    value = int(old)
    near = [value + step for step in (-10, -2, -1, 1, 2, 3, 10)] + ([value * 10, value * 2] if value < 1900 else [])
    return str(rng.choice([other for other in near if other > 0 and other != value]))


def negation(text: str, rng: random.Random) -> str | None:
    """`not` put in, or taken out."""
    if _NEGATED.search(text):
        return re.sub(r"\bcan't\b", "can", _NEGATED.sub("", text, count=1))
    if _HOW_TO.match(text):
        return _HOW_TO.sub(rf"\g<1>{rng.choice(('not', 'avoid having to', 'never'))} ", text)
    if _YES_NO.match(text):
        return _YES_NO.sub(r"\g<1>not ", text)
    return None


def antonym(text: str, rng: random.Random) -> str | None:
    """A word's opposite in its place."""
    opposites = read_opposites("opposites.txt")
    found = [
        match for match in re.finditer(r"[a-z]+", text) if match.group() in opposites and match.group() not in _WEAK
    ]
    if not found:
        return None
    at = rng.choice(found)
    return text[: at.start()] + rng.choice(sorted(opposites[at.group()])) + text[at.end() :]


_WEAK = frozenset("in out on off over under like best good right up down long first last more most many like".split())


def name(text: str, rng: random.Random) -> str | None:
    """Another member of its group in the place of a name, unit, date, language or identifier."""
    found = [(match, group) for pattern, group in _MEMBERS for match in pattern.finditer(text)]
    if not found:
        return None
    at, group = rng.choice(found)
    taken = text.lower()
    others = [word for word in GROUPS[group] if word.lower() not in taken]
    return text[: at.start()] + rng.choice(others) + text[at.end() :] if others else None


# As written: `turkey`, `apple`, `go` and `lead` in a sentence are mostly other things.
_MEMBERS = tuple(
    (re.compile(rf"(?<![\w/.-])(?:{'|'.join(map(re.escape, sorted(words, key=len, reverse=True)))})(?![\w/-])"), group)
    for group, words in GROUPS.items()
    if group not in {"status", "type", "element", "colour"}
)


def order(text: str, rng: random.Random) -> str | None:
    """The two sides of `from A to B`, `A than B`, `A before B` exchanged."""
    found = [match for match in _FROM_TO.finditer(text) if _sides(match)[0].lower() not in _LITTLE]
    found = [match for match in found if _sides(match)[1].lower() not in _LITTLE]
    if not found:
        return None
    at = rng.choice(found)
    one, other = _sides(at)
    between = at.group()[len(at.group().split(one, 1)[0]) + len(one) : -len(other)]
    swapped = at.group().split(one, 1)[0] + other + between + one
    return text[: at.start()] + swapped + text[at.end() :] if one.lower() != other.lower() else None


def _sides(match: re.Match[str]) -> tuple[str, str]:
    one, other = (group for group in match.groups() if group is not None)
    return one, other


_LITTLE = frozenset(
    "how i it is the a an be have has way want need like going used go get learn do make not best what why when ways able"
    " steps time you me my your their this that better more less other rather there come much get see and or going try".split()
)


def asking(text: str, rng: random.Random) -> str | None:
    """Another question word: `how` against `why`."""
    first, _, rest = text.partition(" ")
    if first.lower() not in _ASKING or rest.split(" ", 1)[0].lower() in {
        "to",
        "many",
        "much",
        "long",
        "old",
        "far",
        "was",
    }:
        return None
    return f"{rng.choice(_ASKING[first.lower()]).capitalize()} {rest}"


CHANGES: dict[str, Change] = {
    "number": number,
    "negation": negation,
    "antonym": antonym,
    "name": name,
    "order": order,
    "asking": asking,
}


def from_questions(questions: Sequence[str], count: int, seed: int = 0) -> Iterator[Pair]:
    """Changed and reworded versions of questions, `count` of the first and half as many of the second.

    The kinds of change come in turn, each on a question that it applies to, so that the rare ones are not rare here.
    """
    rng = random.Random(seed)
    made = 0
    pool = list(questions)
    rng.shuffle(pool)
    waiting = list(CHANGES)
    for text in pool:
        if made >= count:
            return
        for kind in list(waiting):
            other = CHANGES[kind](text, rng)
            if other is not None and other.lower() != text.lower():
                yield Pair(text, maybe_reword(other, rng), False, kind)
                if made % 2:
                    yield Pair(text, reword(text, rng), True, "reworded")
                made += 1
                waiting.remove(kind)
                break
        waiting = waiting or list(CHANGES)
        if made < count and len(waiting) == 1 and rng.random() < 0.02:
            waiting = list(CHANGES)


def from_templates(count: int, seed: int = 0) -> Iterator[Pair]:
    """Filled templates that differ in one slot, or have two slots of one group exchanged; `count` of them, and as many
    that are filled alike and reworded."""
    rng = random.Random(seed)
    for _ in range(count):
        template = rng.choice(TEMPLATES)
        slots = _SLOT.findall(template)
        values = _fill(slots, rng)
        changed = _changed(slots, values, rng)
        text = _render(template, values)
        yield Pair(text, maybe_reword(_render(template, changed), rng), False, "template")
        yield Pair(text, reword(text, rng), True, "reworded")


def _changed(slots: Sequence[str], values: Sequence[str], rng: random.Random) -> list[str]:
    changed = list(values)
    twins = [n for n in range(len(slots) - 1) if slots[n] in slots[n + 1 :] and slots[n] in GROUPS]
    if twins and rng.random() < 0.4:
        one = twins[0]
        other = slots.index(slots[one], one + 1)
        changed[one], changed[other] = changed[other], changed[one]
        return changed
    at = rng.randrange(len(slots))
    while changed[at] in values:
        changed[at] = _value(slots[at], rng)
    return changed


def _fill(slots: Sequence[str], rng: random.Random) -> list[str]:
    values: list[str] = []
    for slot in slots:
        value = _value(slot, rng)
        while value in values:
            value = _value(slot, rng)
        values.append(value)
    return values


def _value(slot: str, rng: random.Random) -> str:
    if "|" in slot:
        return rng.choice(slot.split("|"))
    if slot == "n":
        return str(rng.choice((rng.randint(2, 30), rng.randint(2, 500), rng.randint(2, 9) * 10)))
    if slot == "year":
        return str(rng.randint(1900, 2030))
    if slot == "version":
        return f"{rng.randint(1, 20)}.{rng.randint(0, 14)}"
    return rng.choice(GROUPS[slot])


def _render(template: str, values: Sequence[str]) -> str:
    left = iter(values)
    return _SLOT.sub(lambda _: next(left), template)


def maybe_reword(text: str, rng: random.Random) -> str:
    """The text, reworded half of the time."""
    return reword(text, rng) if rng.random() < 0.5 else text
