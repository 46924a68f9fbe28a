"""Names the turns of sessions that lost tokens, for `lint`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvproxy.journal.sessions.ledger import main_cause
from kvproxy.journal.sessions.session_reader import Turn


@dataclass(frozen=True, slots=True)
class TurnLoss:
    """A turn that lost tokens, and their main cause.

    Attributes:
        session: the client's name for the session, or else its number.
        turn, time, pause, region, place: see `Turn`.
        cause, tokens: the cause with the most lost tokens (see `main_cause`), and their number.
        lost_cost: money that reuse of these tokens would have saved; None without a price.
    """

    session: str
    turn: int
    time: float
    model: str
    pause: float | None
    cause: str
    tokens: int
    lost_cost: float | None
    region: str | None
    place: int | None


def turn_losses(turns: Sequence[Turn]) -> Iterator[TurnLoss]:
    for turn in turns:
        if (cause := main_cause(turn.lost, turn.reused_tokens)) is not None:
            region, place = turn.place_of(cause)
            yield TurnLoss(
                session=turn.name or str(turn.session),
                turn=turn.turn,
                time=turn.time,
                model=turn.model,
                pause=turn.pause,
                cause=cause,
                tokens=turn.lost[cause],
                lost_cost=turn.lost_cost_of(cause),
                region=region,
                place=place,
            )
