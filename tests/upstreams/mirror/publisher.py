"""A publisher of KV events, written from vLLM's format independently of the product."""

import threading
from collections import Counter, deque
from typing import Any

import msgpack
import zmq

END = b"\xff" * 8


class Model:
    """An engine: its events, and its cached blocks.

    Payloads come in vLLM's two encodings: maps with a type, or positional arrays.
    """

    def __init__(self, positional: bool = False, buffer: int = 10_000) -> None:
        self.positional = positional
        self.held: Counter[int] = Counter()
        self.sequence = 0
        self.buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer)
        self._clock = 0.0

    def restart(self) -> None:
        """Start a new process: numbers from 0, an empty cache and buffer."""
        self.held.clear()
        self.sequence = 0
        self.buffer.clear()

    def store(self, hashes: list[int], parent: int | None = None, tokens: list[int] | None = None, **more: Any) -> Any:
        self.held.update(hashes)
        tokens = [digest % 1000 for digest in hashes] if tokens is None else tokens
        fields = {
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": tokens,
            "block_size": len(tokens) // len(hashes),
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        } | more
        return ["BlockStored", *fields.values()] if self.positional else {"type": "BlockStored"} | fields

    def remove(self, hashes: list[int]) -> Any:
        self.held.subtract(hashes)
        self.held += Counter()
        if self.positional:
            return ["BlockRemoved", hashes, "GPU"]
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"}

    def clear(self) -> Any:
        self.held.clear()
        return ["AllBlocksCleared"] if self.positional else {"type": "AllBlocksCleared"}

    def publish(self, *events: Any, rank: int | None = 0) -> tuple[int, bytes]:
        """Return the next batch with its number."""
        self._clock += 1.0
        batch = msgpack.packb([self._clock, list(events), rank])
        numbered = (self.sequence, batch)
        self.buffer.append(numbered)
        self.sequence += 1
        return numbered


class Sockets:
    """A model's PUB socket and replay ROUTER on loopback, served by a thread."""

    def __init__(self, model: Model, topic: bytes = b"", ports: tuple[int, int] | None = None) -> None:
        self.model = model
        self.topic = topic
        self._context = zmq.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self._pub.set_hwm(0)
        self._router.set_hwm(0)
        wanted = ports or (0, 0)
        self._pub.bind(f"tcp://127.0.0.1:{wanted[0] or '*'}")
        self._router.bind(f"tcp://127.0.0.1:{wanted[1] or '*'}")
        self.events = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
        self.replay = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def send(self, *events: Any, rank: int | None = 0, lost: bool = False) -> None:
        """Publish a batch, or only number it if it is lost."""
        with self._lock:
            number, payload = self.model.publish(*events, rank=rank)
            if not lost:
                self._pub.send_multipart([self.topic, number.to_bytes(8, "big"), payload])

    def send_frames(self, frames: list[bytes]) -> None:
        """Publish a message of any shape."""
        with self._lock:
            self._pub.send_multipart(frames)

    def _serve(self) -> None:
        while not self._ending.is_set():
            if self._router.poll(20):
                identity, _, start = self._router.recv_multipart()
                with self._lock:
                    for number, payload in self.model.buffer:
                        if number >= int.from_bytes(start, "big"):
                            self._router.send_multipart([identity, b"", self.topic, number.to_bytes(8, "big"), payload])
                    self._router.send_multipart([identity, b"", b"", END, b""])

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._pub.close(linger=0)
        self._router.close(linger=0)
        self._context.term()
