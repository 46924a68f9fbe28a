"""Near-misses from templates of CheckList's tests of question pairs (Ribeiro et al. 2020, github.com/marcotcr/checklist, MIT)."""

from itertools import cycle, islice, product

_NAMES = "Emma Lewis|Jack Turner|Laura Evans|Scott Baker|Diana Cole|Tim Reed|Ruth Hayes|Paul Ward|Amy Price|Kevin Long".split(
    "|"
)
_ROLES = "a historian|an architect|a nurse|an editor|a candidate|an economist|a waitress|an actor|a journalist|a model".split(
    "|"
)
_ACTIONS = (
    "feed wash|brush bathe|train adopt|register vaccinate|isolate neuter|weigh treat|groom show|insure board".split("|")
)
_PETS = "cat|dog|hamster".split("|")
_RATINGS = "normal|safe|acceptable|healthy|reasonable".split("|")
_ACTIVITIES = "drink|drive|exercise|cook|text".split("|")
_HOURS = "10pm|6am|11pm|9am|5pm".split("|")
_PEOPLE = (("Adam", "Julia"), ("Henry", "Alice"), ("Frank", "Sarah"), ("Ian", "Kate"), ("Roger", "Nancy"))
_SIZE = 20
_HALF = _SIZE // 2


def make_checklist_pairs() -> list[dict[str, str]]:
    """Return 20 pairs of each of five kinds that need different answers: `{"a", "b", "kind"}`."""
    people = [*zip(_NAMES, _ROLES, strict=True), *zip(_NAMES, (*_ROLES[3:], *_ROLES[:3]), strict=True)]
    pets = [(*action.split(), pet) for action, pet in product(_ACTIONS, _PETS)]
    hours = [*zip(cycle(_RATINGS), (each for each in _ACTIVITIES for _ in _HOURS), cycle(_HOURS), strict=False)]
    both = [
        (f"If {one} and {other} were {state}, would {{}} family be happy?", one, other)
        for one, other in _PEOPLE
        for state in ("married", "engaged", "friends", "colleagues")
    ]
    kinds = {
        "used to be": ((f"Is {name} {role}?", f"Did {name} use to be {role}?") for name, role in people),
        "becoming": ((f"Is {name} {role}?", f"Is {name} becoming {role}?") for name, role in people),
        "life before and after": (
            tuple(f"What was {name}'s life {relation} becoming {role}?" for relation in ("before", "after"))
            for name, role in people
        ),
        "before and after": (
            *(
                tuple(f"Do you have to {one} your {pet} {relation} you {other} it?" for relation in ("before", "after"))
                for one, other, pet in pets[::2][:_HALF]
            ),
            *(
                tuple(f"Is it {rating} to {activity} {relation} {hour}?" for relation in ("before", "after"))
                for rating, activity, hour in hours[:_HALF]
            ),
        ),
        "his and her": ((question.format("his"), question.format("her")) for question, _, _ in both),
    }
    return [
        {"a": one, "b": other, "kind": kind} for kind, pairs in kinds.items() for one, other in islice(pairs, _SIZE)
    ]
