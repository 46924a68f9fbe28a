"""Checks what a policy returns, because users can write policies."""

from numbers import Real
from typing import get_args

from kvproxy.index.policies.policy import Decision, PolicyResult, PolicyVerdict

_VERDICTS = get_args(PolicyVerdict)


def check_result(result: object, num_neighbours: int) -> None:
    """Raise TypeError or ValueError if `decide` may not return this result for this number of neighbours."""
    if not isinstance(result, PolicyResult):
        raise TypeError(f"decide must return a PolicyResult, not {type(result).__name__}")
    if len(result.decisions) != num_neighbours:
        raise ValueError(
            f"decide must return a decision on each of {num_neighbours} neighbours, not {len(result.decisions)}"
        )
    for place, decision in enumerate(result.decisions):
        _check_decision(place, decision)
    verdicts, chosen = [decision.verdict for decision in result.decisions], result.chosen
    if chosen is None:
        if "accepted" in verdicts:
            raise ValueError(f"decisions[{verdicts.index('accepted')}] is accepted, so chosen must not be None")
    elif chosen not in range(num_neighbours):
        raise ValueError(f"chosen must be None or the index of one of {num_neighbours} decisions, not {chosen!r}")
    elif verdicts[chosen] != "accepted":
        raise ValueError(f"the verdict of the chosen decisions[{chosen}] must be accepted, not {verdicts[chosen]}")


def _check_decision(place: int, decision: object) -> None:
    if not isinstance(decision, Decision):
        raise TypeError(f"decisions[{place}] must be a Decision, not {type(decision).__name__}")
    if decision.verdict not in _VERDICTS:
        raise ValueError(
            f"the verdict of decisions[{place}] must be {', '.join(_VERDICTS)}, not {str(decision.verdict)[:80]}"
        )
    if not isinstance(decision.score, Real | None):
        kind = type(decision.score).__name__
        raise TypeError(f"the score of decisions[{place}] must be a number or None, not {kind}")
