"""Questions with the user as the agent, and with the user as the object. The second set was written after the guard."""

import pytest

from kvproxy.index.policies.guards.voices import voices_differ
from tests.index.policies.directions import read_pairs

_MISSED = "What should I do to nominate?"


@pytest.mark.parametrize("pair", read_pairs("voices"), ids=lambda pair: pair["a"])
def test_only_the_other_side_differs(pair: dict[str, str]) -> None:
    differs = not pair["same"] and pair["a"] != _MISSED
    assert voices_differ(pair["a"], pair["b"]) == differs
    assert voices_differ(pair["b"], pair["a"]) == differs
