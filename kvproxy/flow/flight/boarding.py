"""Requests to the backend: each joins the flight of an identical one, or begins its own."""

from kvproxy.apis.json import dumps
from kvproxy.apis.request import ApiRequest
from kvproxy.backends.protocol import Backend
from kvproxy.flow.cached.keep import Asked, FlightKeeper, Shelf
from kvproxy.flow.flight.flights import Flight, Flights
from kvproxy.flow.flight.source import Source, open_source
from kvproxy.flow.recording.spending import metered


class Boarding:
    """Has requests answered by a backend.

    Args:
        backend: answers.
        shelf: keeps what may be kept.
    """

    def __init__(self, backend: Backend, shelf: Shelf) -> None:
        self.flights = Flights()
        self._backend = backend
        self._shelf = shelf

    def alone(self, asked: Asked) -> bool:
        """Whether a request flies alone: one that wants a fresh or an unstored answer."""
        return asked.request.control.no_cache or not self._keeps(asked)

    def _keeps(self, asked: Asked) -> bool:
        lifetime = self._shelf.lifetime(asked.request)
        return asked.cacheable and not asked.request.control.no_store and lifetime > 0

    def board(self, asked: Asked) -> tuple[Flight, bool]:
        """The flight of a request, to be left with `leave`; whether it was under way already.

        One never joins another tenant's flight: errors and cookies belong to who asked, even where answers are shared.
        """
        request, keep = asked.request, self._keeps(asked)
        form = (request.stream, dumps(request.body.get("stream_options")))
        return self.flights.board(
            (asked.key.exact, request.tenant, form, object() if self.alone(asked) else None),
            lambda: Flight(lambda: self._open(request), FlightKeeper(self._shelf, asked, keep=keep)),
        )

    async def _open(self, request: ApiRequest) -> Source:
        limit = self._shelf.settings.max_response_bytes
        if request.account is not None:
            return await metered(request, request.account, self._backend, limit)
        return open_source(request, await self._backend.send(request), limit)
