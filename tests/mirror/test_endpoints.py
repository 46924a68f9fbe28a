"""Addresses of event sockets, one for each rank."""

import pytest

from kvproxy.mirror.mirror import Mirror, expand


@pytest.mark.parametrize(
    ("endpoint", "sockets"),
    [
        ("tcp://host:5557", ["tcp://host:5557"]),
        ("tcp://host:5557-5557", ["tcp://host:5557"]),
        ("tcp://*:5557-5559", ["tcp://*:5557", "tcp://*:5558", "tcp://*:5559"]),
        ("tcp://host:65535", ["tcp://host:65535"]),
        ("ipc:///run/events", ["ipc:///run/events"]),
        ("inproc://events", ["inproc://events"]),
    ],
)
def test_an_endpoint_names_its_sockets(endpoint: str, sockets: list[str]) -> None:
    assert expand(endpoint) == sockets


def test_so_many_ranks_have_sockets() -> None:
    assert len(expand("tcp://host:1000-2023")) == 1024
    with pytest.raises(ValueError, match="no range of ports"):
        expand("tcp://host:1000-2024")


@pytest.mark.parametrize("endpoint", ["", "host:5557", "tcp://host", "udp://host:1", "ipc://", "tcp://host:5557-"])
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="is no endpoint: write tcp://host:5557"):
        expand(endpoint)


@pytest.mark.parametrize("endpoint", ["tcp://host:5558-5557", "tcp://host:65536", "tcp://host:65535-65536"])
def test_what_is_no_range_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="no range of ports"):
        expand(endpoint)


def test_each_publisher_has_its_own_replay_socket() -> None:
    mirror = Mirror("tcp://host:1-2", "tcp://host:3-4")
    assert [(each.endpoint, each._replay) for each in mirror.subscribers] == [
        ("tcp://host:1", "tcp://host:3"),
        ("tcp://host:2", "tcp://host:4"),
    ]
    with pytest.raises(ValueError, match="names 2 sockets and 'tcp://host:3' 1"):
        Mirror("tcp://host:1-2", "tcp://host:3")
