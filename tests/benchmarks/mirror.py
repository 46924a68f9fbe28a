"""Rate at which a mirror follows an engine's KV events, beside a bare pyzmq subscriber that only receives and unpacks them.

python -m tests.benchmarks.mirror [--events 100000] [--rate 10000]

Each batch has one event, as in an engine that decodes: half of them store a block of 16 tokens, half remove a block. Both
subscribers receive the events at the given rate, then as fast as possible.
"""

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection

import msgpack
import zmq

from kvproxy.upstreams.mirror.mirror import EventSubscriber
from tests.benchmarks.options import read_options
from tests.upstreams.mirror.publisher import Model


def publish(pipe: Connection, events: int, rate: float) -> None:
    """Publish all events on one of two sockets for each request; rate 0 is full speed."""
    context, model = zmq.Context(), Model()
    sockets = [context.socket(zmq.PUB) for _ in range(2)]
    for socket in sockets:
        socket.set_hwm(0)
        socket.bind("tcp://127.0.0.1:*")
    batches = []
    for number in range(events // 2):
        batches.append(model.publish(model.store([number], tokens=list(range(number, number + 16)))))
        event = model.remove([number - 1000]) if number >= 1000 else model.store([number + 10**9])
        batches.append(model.publish(event))
    pipe.send([socket.getsockopt_string(zmq.LAST_ENDPOINT) for socket in sockets])
    while (chosen := pipe.recv()) is not None:
        began = time.perf_counter()
        for index, (number, payload) in enumerate(batches):
            sockets[chosen].send_multipart([b"", number.to_bytes(8, "big"), payload])
            if rate and index % 100 == 0:
                time.sleep(max(0.0, began + index / rate - time.perf_counter()))
        pipe.send(time.perf_counter() - began)
    context.destroy(linger=0)


async def run_mirror(endpoint: str, pipe: Connection, events: int) -> tuple[float, float, float]:
    """Return the seconds until the last event, the CPU seconds, and the longest block of the event loop."""
    subscriber = EventSubscriber(endpoint)
    await subscriber.start()
    await asyncio.sleep(1.0)
    assert subscriber.is_connected
    pipe.send(0)
    longest, cpu = 0.0, time.process_time()
    began = last = time.perf_counter()
    while subscriber.sequencer.next < events:
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert subscriber.sequencer.complete
    assert subscriber.sequencer.counts.gaps == 0
    await subscriber.close()
    return seconds, cpu, longest


def run_bare(endpoint: str, pipe: Connection, events: int) -> tuple[float, float]:
    """Return the seconds and CPU seconds of the bare subscriber."""
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.set_hwm(0)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(endpoint)
    time.sleep(0.3)
    pipe.send(1)
    cpu, began = time.process_time(), time.perf_counter()
    for _ in range(events):
        msgpack.unpackb(socket.recv_multipart()[2])
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    context.destroy(linger=0)
    return seconds, cpu


def measure(events: int, rate: float) -> None:
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    process = context.Process(target=publish, args=(other, events, rate))
    process.start()
    endpoints = pipe.recv()
    seconds, cpu, longest = asyncio.run(run_mirror(endpoints[0], pipe, events))
    published = pipe.recv()
    bare_seconds, bare_cpu = run_bare(endpoints[1], pipe, events)
    pipe.recv()
    pipe.send(None)
    process.join()
    print(f"\n{events:,} events at {f'{rate:,.0f}/s' if rate else 'full speed'}: published in {published:.2f} s")
    for name, values in (("mirror", (seconds, cpu)), ("bare pyzmq", (bare_seconds, bare_cpu))):
        print(f"{name:10} {events / values[0]:>10,.0f} events/s, {1e6 * values[1] / events:6.1f} us of CPU per event")
    print(
        f"CPU ratio {cpu / bare_cpu:.2f}; delay at the end {seconds - published:.2f} s; event loop blocked {1e3 * longest:.1f} ms"
    )


def main() -> None:
    options = read_options(__doc__, events=100_000, rate=10_000.0)
    measure(options.events, options.rate)
    measure(options.events, 0)


if __name__ == "__main__":
    main()
