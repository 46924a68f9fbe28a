"""Generates labelled pairs for training: hard negatives and rewordings.

A hard negative is a similar question with another answer, such as `disable 2FA` for `enable 2FA`. People's labelled pairs
contain few. Half of the generated ones are also reworded, so that the verifier does not learn to reject rewordings.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from kvproxy.index.evaluation.labelled_pairs import LabelledPair
from kvproxy.index.policies.guards.negation_and_opposites import read_opposites
from training.verifier.rewording import GROUPS, reword

Change = Callable[[str, random.Random], str | None]
"""Returns a similar question with another answer; None if the change does not apply to the question."""

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?(?![\w])")
_YES_NO = re.compile(
    r"^((?:is|are|was|were|can|could|should|would|will|does|did|has|have|must) (?:it|i|you|we|they|he|she|there|\w+) )(?!not\b)",
    re.I,
)
_HOW_TO = re.compile(r"^(how (?:do|can|should) (?:i|you|we) |how to )(?!not\b)", re.I)
_NEGATED = re.compile(r" not\b|n't\b", re.I)
_FROM_TO = re.compile(r"\bfrom (\w+) to (\w+)\b|\b(\w+) (?:to|into|than|before|without|over|instead of) (\w+)\b", re.I)
# Questions with slots: `{city}` takes a word of that group, `{n}` a number, and `{yes|no}` one of the words.
_TEMPLATES = (Path(__file__).parent / "templates.txt").read_text().splitlines()
_SLOT = re.compile(r"\{([^}]+)\}")
_QUESTION_WORDS = {
    "how": ("why", "when", "where"),
    "why": ("how", "when"),
    "when": ("where", "how", "why"),
    "where": ("when", "how"),
    "who": ("when", "where"),
}
_FIXED_AFTER_QUESTION_WORD = frozenset("to many much long old far was".split())
# Their opposites often fit the same answer.
_WEAK_OPPOSITES = frozenset(
    "in out on off over under like best good right up down long first last more most many like".split()
)
_NO_OPERANDS = frozenset(
    "how i it is the a an be have has way want need like going used go get learn do make not best what why when ways able"
    " steps time you me my your their this that better more less other rather there come much get see and or going try".split()
)
# Case-sensitive, because words such as `turkey` and `go` are mostly no names.
_GROUP_PATTERNS = tuple(
    (re.compile(rf"(?<![\w/.-])(?:{'|'.join(map(re.escape, sorted(words, key=len, reverse=True)))})(?![\w/-])"), group)
    for group, words in GROUPS.items()
    if group not in {"status", "type", "element", "colour"}
)


def change_number(text: str, rng: random.Random) -> str | None:
    found = list(_NUMBER.finditer(text))
    if not found:
        return None
    match = rng.choice(found)
    return _replace_match(text, match, _other_number(match.group(), rng))


def _replace_match(text: str, match: re.Match[str], replacement: str) -> str:
    return text[: match.start()] + replacement + text[match.end() :]


def _other_number(old: str, rng: random.Random) -> str:
    if "." in old:
        whole, part = old.split(".")
        return f"{whole}.{int(part) + rng.randint(1, 9)}"
    value = int(old)
    # Multiples of a year are no years.
    near = [value + step for step in (-10, -2, -1, 1, 2, 3, 10)] + ([value * 10, value * 2] if value < 1900 else [])
    return str(rng.choice([other for other in near if other > 0 and other != value]))


def toggle_negation(text: str, rng: random.Random) -> str | None:
    if _NEGATED.search(text):
        return re.sub(r"\bcan't\b", "can", _NEGATED.sub("", text, count=1))
    if _HOW_TO.match(text):
        return _HOW_TO.sub(rf"\g<1>{rng.choice(('not', 'avoid having to', 'never'))} ", text)
    return _YES_NO.sub(r"\g<1>not ", text) if _YES_NO.match(text) else None


def insert_opposite(text: str, rng: random.Random) -> str | None:
    opposites = read_opposites("opposites.txt")
    known = opposites.keys() - _WEAK_OPPOSITES
    found = [match for match in re.finditer(r"\b[a-z]+\b", text) if match.group() in known]
    if not found:
        return None
    match = rng.choice(found)
    return _replace_match(text, match, rng.choice(sorted(opposites[match.group()])))


def change_name(text: str, rng: random.Random) -> str | None:
    found = [(match, group) for pattern, group in _GROUP_PATTERNS for match in pattern.finditer(text)]
    if not found:
        return None
    match, group = rng.choice(found)
    others = [word for word in GROUPS[group] if word.lower() not in text.lower()]
    return _replace_match(text, match, rng.choice(others)) if others else None


def swap_operands(text: str, rng: random.Random) -> str | None:
    found = [match for match in _FROM_TO.finditer(text) if _NO_OPERANDS.isdisjoint(map(str.lower, _operands(match)))]
    if not found:
        return None
    match = rng.choice(found)
    one, other = _operands(match)
    before, between = match.group().split(one, 1)
    swapped = before + other + between.removesuffix(other) + one
    return _replace_match(text, match, swapped) if one.lower() != other.lower() else None


def _operands(match: re.Match[str]) -> tuple[str, str]:
    one, other = (group for group in match.groups() if group is not None)
    return one, other


def change_question_word(text: str, rng: random.Random) -> str | None:
    first, _, rest = text.partition(" ")
    if first.lower() not in _QUESTION_WORDS or rest.split(" ", 1)[0].lower() in _FIXED_AFTER_QUESTION_WORD:
        return None
    return f"{rng.choice(_QUESTION_WORDS[first.lower()]).capitalize()} {rest}"


CHANGES: dict[str, Change] = {
    "number": change_number,
    "negation": toggle_negation,
    "opposite": insert_opposite,
    "name": change_name,
    "operands": swap_operands,
    "question word": change_question_word,
}


def pairs_from_questions(questions: Sequence[str], count: int, seed: int) -> Iterator[LabelledPair]:
    """Yield up to `count` hard negatives of questions, and half as many rewordings.

    Each kind of change is used once before any is used again, so that rare kinds are not rare here.
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
                yield LabelledPair(text, _maybe_reword(other, rng), False)
                if made % 2:
                    yield LabelledPair(text, reword(text, rng), True)
                made += 1
                waiting.remove(kind)
                break
        # The last kind may apply to few questions.
        if not waiting or (len(waiting) == 1 and rng.random() < 0.02):
            waiting = list(CHANGES)


def pairs_from_templates(count: int, seed: int) -> Iterator[LabelledPair]:
    """Yield `count` hard negatives (a template filled with two different words), and as many rewordings."""
    rng = random.Random(seed)
    for _ in range(count):
        template = rng.choice(_TEMPLATES)
        slots = _SLOT.findall(template)
        values = _fill(slots, rng)
        text, changed = _render(template, values), _render(template, _change_values(slots, values, rng))
        yield LabelledPair(text, _maybe_reword(changed, rng), False)
        yield LabelledPair(text, reword(text, rng), True)


def _change_values(slots: Sequence[str], values: Sequence[str], rng: random.Random) -> list[str]:
    changed = list(values)
    repeated = [n for n in range(len(slots) - 1) if slots[n] in slots[n + 1 :] and slots[n] in GROUPS]
    if repeated and rng.random() < 0.4:
        one = repeated[0]
        other = slots.index(slots[one], one + 1)
        changed[one], changed[other] = changed[other], changed[one]
        return changed
    place = rng.randrange(len(slots))
    while changed[place] in values:
        changed[place] = _value(slots[place], rng)
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


def _maybe_reword(text: str, rng: random.Random) -> str:
    return reword(text, rng) if rng.random() < 0.5 else text
