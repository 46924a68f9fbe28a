"""Does the mirror keep up with a publisher that floods it? A process publishes as fast as it is told over a real socket.

python -m tests.benchmarks.mirror [--events 100000] [--rate 10000]

Each batch holds one event, as in an engine that decodes: half of them store a block of 16 tokens, half remove one. The
floor is a bare pyzmq subscriber that only receives and unpacks the same messages, in the same run. A rate of 0 publishes
everything at once, which tells the most that each can take.
"""

import argparse
import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection

import msgpack
import zmq

from kvproxy.mirror.subscriber import EventSubscriber
from tests.mirror.publisher import Model


def flood(pipe: Connection, events: int, rate: float) -> None:
    """Publish on two sockets in turn: one for each subscriber."""
    context = zmq.Context()
    sockets = [context.socket(zmq.PUB) for _ in range(2)]
    for socket in sockets:
        socket.set_hwm(0)
        socket.bind("tcp://127.0.0.1:*")
    model = Model()
    batches = []
    for number in range(events // 2):
        batches.append(model.publish(model.store([number], tokens=list(range(number, number + 16)))))
        batches.append(
            model.publish(model.remove([number - 1000]) if number >= 1000 else model.store([number + 10**9]))
        )
    pipe.send([socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in sockets])
    while (chosen := pipe.recv()) is not None:
        began = time.perf_counter()
        for index, (number, payload) in enumerate(batches):
            sockets[chosen].send_multipart([b"", number.to_bytes(8, "big"), payload])
            if rate and index % 100 == 0:
                time.sleep(max(0.0, began + index / rate - time.perf_counter()))
        pipe.send(time.perf_counter() - began)
    context.destroy(linger=0)


async def mirror(endpoint: str, pipe: Connection, events: int) -> tuple[float, float, float]:
    """Seconds from the first to the last batch, CPU seconds in between, and the longest stall of the event loop."""
    subscriber = EventSubscriber(endpoint)
    await subscriber.start()
    await asyncio.sleep(1.0)
    assert subscriber.is_connected
    pipe.send(0)
    stall, busy = 0.0, time.process_time()
    began = last = time.perf_counter()
    while subscriber.sequencer.next < events:
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        stall, last = max(stall, now - last), now
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    assert subscriber.sequencer.complete
    assert subscriber.sequencer.counts.gaps == 0
    await subscriber.close()
    return seconds, cpu, stall


def bare(endpoint: str, pipe: Connection, events: int) -> tuple[float, float]:
    """Seconds and CPU seconds of a subscriber that only receives and unpacks."""
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.set_hwm(0)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(endpoint)
    time.sleep(0.3)
    pipe.send(1)
    busy = time.process_time()
    began = time.perf_counter()
    for _ in range(events):
        msgpack.unpackb(socket.recv_multipart()[2])
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    context.destroy(linger=0)
    return seconds, cpu


def measure(events: int, rate: float) -> None:
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=flood, args=(theirs, events, rate))
    process.start()
    endpoints = pipe.recv()
    ours, cpu, stall = asyncio.run(mirror(endpoints[0], pipe, events))
    sent = pipe.recv()
    floor, floor_cpu = bare(endpoints[1], pipe, events)
    pipe.recv()
    pipe.send(None)
    process.join()
    print(f"\n{events:,} events at {f'{rate:,.0f}/s' if rate else 'full speed'}: published in {sent:.2f} s")
    print(
        f"mirror      {events / ours:>10,.0f} events/s, {1e6 * cpu / events:6.1f} us CPU an event, stall {1e3 * stall:.1f} ms"
    )
    print(f"bare pyzmq  {events / floor:>10,.0f} events/s, {1e6 * floor_cpu / events:6.1f} us CPU an event")
    print(f"ratio of CPU {cpu / floor_cpu:.2f}; behind the publisher at the end by {ours - sent:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=10_000)
    arguments = parser.parse_args()
    measure(arguments.events, arguments.rate)
    measure(arguments.events, 0)


if __name__ == "__main__":
    main()
