"""Roles that are exchanged across forms of a relation, such as `can A cause B` and `is A due to B`."""

import pytest

from kvproxy.index.policies.guards import GUARDS
from kvproxy.index.policies.guards.relations import roles_are_exchanged
from tests.index.policies.exchanged_roles import exchanged_roles, kept_roles

ROLES = next(guard for guard in GUARDS if guard.name == "roles")
KNOWN = {"replace", "cause", "prefer", "require", "contain", "own"}


def test_exchanged_roles_are_vetoed_in_all_known_forms() -> None:
    pairs = [pair for pair in exchanged_roles("first") if pair["relation"] in KNOWN]
    assert len(pairs) == 1600
    assert [pair for pair in pairs[::3] if not ROLES.vetoes(pair["a"], pair["b"])] == []


@pytest.mark.parametrize("name", ["first", "second", "third"])
def test_kept_roles_are_accepted(name: str) -> None:
    assert [pair for pair in kept_roles(name) if roles_are_exchanged(pair["a"], pair["b"])] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Can I replace butter with oil?", "Does butter work as a substitute for oil?"),
        ("Is red wine a good white wine substitute?", "Can white wine replace red wine?"),
        ("Should I add salt first and then boil the water?", "Should I boil the water first and then add salt?"),
        ("Is an emu bigger than a rhea?", "Does a rhea exceed an emu in size?"),
        ("Did Ann lend money to Tom?", "Did Ann get a loan from Tom?"),
    ],
)
def test_a_veto_is_symmetric(one: str, other: str) -> None:
    assert ROLES.vetoes(one, other)
    assert ROLES.vetoes(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Can I eat before surgery?", "Before surgery, can I eat?"),
        ("What do I need for a visa?", "Which documents does a visa need?"),
        ("Do I need any shots before I go to Peru?", "What shots do I need before I go to Peru?"),
        ("Do I need to get shots before I go to Peru?", "What shots do I need before going to Peru?"),
        ("Can I use oil instead of butter?", "Can I use margarine instead of oil?"),
    ],
)
def test_one_role_is_not_an_exchange(one: str, other: str) -> None:
    assert not ROLES.vetoes(one, other)
