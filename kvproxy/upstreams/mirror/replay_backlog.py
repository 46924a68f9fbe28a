"""The received batches of a replay that are not applied yet."""

import asyncio

import zmq.asyncio

MAX_REPLAY_BYTES = 64 * 2**20
"""Maximum size of the received batches of a replay that are not applied yet."""


class ReplayBacklog:
    """Receives a replay faster than it is applied: the publisher drops batches that it cannot send.

    Receiving pauses while the received batches exceed `MAX_REPLAY_BYTES`.
    """

    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self._socket = socket
        self._messages: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
        self._bytes = 0
        self._has_space = asyncio.Event()
        self._has_space.set()
        self._task = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        while True:
            await self._has_space.wait()
            # Some versions of vLLM send no topic.
            number, payload = ([b"", b""] + await self._socket.recv_multipart())[-2:]
            self._bytes += len(payload)
            if self._bytes > MAX_REPLAY_BYTES:
                self._has_space.clear()
            self._messages.put_nowait((number, payload))
            await asyncio.sleep(0)

    async def get(self, timeout: float) -> tuple[bytes, bytes] | None:
        """Return the next message, or None after `timeout` seconds without a message."""
        try:
            async with asyncio.timeout(timeout):
                number, payload = await self._messages.get()
        except TimeoutError:
            return None
        self._bytes -= len(payload)
        if self._bytes <= MAX_REPLAY_BYTES:
            self._has_space.set()
        return number, payload

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
