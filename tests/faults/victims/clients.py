"""The file of clients, which `kvproxy keys` writes as a whole."""

from collections.abc import Sequence
from pathlib import Path

from kvproxy.clients import add_client, all_clients, remove_client
from kvproxy.settings import load_settings
from tests.faults.victims.victim import READY, Tell


class Clients:
    """Tells `+name` of a client that was added, `~name` before it is removed, `-name` afterwards."""

    name = "clients"
    lives = 5
    longest = 0.05

    def prepare(self, folder: Path, seed: int) -> None:
        """An empty folder."""

    def work(self, folder: Path, seed: int, tell: Tell) -> None:
        settings = load_settings(data=folder)
        tell(READY)
        for number in range(10**6):
            name = f"c{seed}-{number}"
            add_client(settings, name)
            tell(f"+{name}")
            if number % 3:
                tell(f"~{name}")
                remove_client(settings, name)
                tell(f"-{name}")

    def check(self, folder: Path, told: Sequence[str]) -> None:
        by_sign = {sign: {line[1:] for line in told if line[0] == sign} for sign in "+~-"}
        kept = {client.name for client in all_clients(load_settings(data=folder))}
        assert by_sign["+"] - by_sign["~"] <= kept, "a client is lost"
        assert not kept & by_sign["-"], "a key that was taken back works again"
