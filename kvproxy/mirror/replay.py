"""How far the answer to one replay request has come."""

from dataclasses import dataclass


@dataclass(slots=True)
class Replay:
    """An answer to a replay request.

    Attributes:
        from_start: whether everything was asked for.
        verified: whether it is of the run that we know.
        answered: whether a batch has come.
        skipping: whether the rest of it is of no use.
    """

    from_start: bool
    verified: bool
    answered: bool = False
    skipping: bool = False
