"""Finds an exchange of the user and a third person in German and Dutch: `leiht mir der Fahrer` and `leihe ich dem Fahrer`."""

import re
from dataclasses import dataclass
from functools import lru_cache

_WORD = re.compile(r"[^\W\d_]+")
_SUBJECTS = frozenset("ich wir ik wij we".split())
_OBJECTS = frozenset("mir mich uns mij ons".split())
_ADDRESSEES = frozenset("sie ihnen u jij je jullie du dir dich".split())
_OWNED = re.compile(r"\b(?P<case>van mijn|van onze|meine[smnr]|unsere[smnr]|meine?|unsere?|mijn|onze) (?P<thing>\w+)")
_NOMINATIVE = frozenset("mein meine unser unsere mijn onze".split())
_STEM = 4


@dataclass(frozen=True, slots=True)
class _User:
    """The user's roles in a text, and the beginnings of the user's things by grammatical case."""

    is_subject: bool
    is_object: bool
    is_alone: bool
    nominative: tuple[str, ...]
    oblique: tuple[str, ...]


def third_person_is_exchanged(question: str, other: str) -> bool:
    """Whether a third person does in one question what the user does in the other one."""
    one, another = _user(question), _user(other)
    return one.is_alone and another.is_alone and (_does_to_user(one, another) or _does_to_user(another, one))


def _does_to_user(other: _User, own: _User) -> bool:
    if other.is_subject or own.is_object or not own.is_subject:
        return False
    # `Darf mein Freund mit meinem Konto fahren?` and `Darf ich mit dem Konto meines Freundes fahren?`
    return other.is_object or (
        len(other.nominative + other.oblique) > 1 and not set(other.nominative).isdisjoint(own.oblique)
    )


@lru_cache(maxsize=4096)
def _user(text: str) -> _User:
    plain = text.lower()
    tokens = _WORD.findall(plain)
    words = frozenset(tokens)
    owned = [(match["case"] in _NOMINATIVE, match["thing"][:_STEM]) for match in _OWNED.finditer(plain)]
    return _User(
        not words.isdisjoint(_SUBJECTS),
        not _OBJECTS.isdisjoint(tokens[1:]),  # `Mich anmelden` has no subject.
        words.isdisjoint(_ADDRESSEES),
        tuple(thing for is_nominative, thing in owned if is_nominative),
        tuple(thing for is_nominative, thing in owned if not is_nominative),
    )
