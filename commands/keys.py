from contextlib import closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.formatting import format_age, local_time, table_time
from kvproxy.commands.options import Data, LimitOrAll, duration_option, load_settings, size_option
from kvproxy.commands.output import Output, print_note, text_output
from kvproxy.commands.tables import Layout, Row, table_output, text_column
from kvproxy.operations.client import used_data_folder
from kvproxy.units import format_bytes

if TYPE_CHECKING:
    from kvproxy.settings import Settings

app = CommandGroup("keys", help="Manage clients and their API keys.")

Name = Annotated[str, Argument(help="Name of the client.")]


@dataclass(frozen=True, slots=True)
class LimitOptions:
    requests_per_minute: Annotated[int | None, Option(min=1, help="Requests per minute; excess receives 429.")] = None
    tokens_per_minute: Annotated[int | None, Option(min=1, help="Computed tokens per minute; excess gets 429.")] = None
    concurrent_requests: Annotated[int | None, Option(min=1, help="Requests in flight; excess receives 429.")] = None
    stored_bytes: Annotated[int | None, size_option(help="Size of its stored responses; excess is evicted.")] = None


@app.subcommand
def add(*, name: Name, limits: LimitOptions, data: Data = None) -> Output:
    """Create a client and print its API key.

    The key is shown only once: the proxy stores its digest. As soon as a client exists, the proxy rejects requests without a
    valid key.

    Example: kvproxy keys add search-team --requests-per-minute 600
    """
    from kvproxy.clients.client_keys import add_client, all_clients

    settings = _load_settings(data)
    key = add_client(settings, name, **asdict(limits))
    if len(all_clients(settings)) == 1:
        print_note(f"the first client: from now on, a proxy of {settings.data} rejects requests without a key")
    return text_output({"name": name, "key": key}, key)


@app.subcommand
def ls(*, layout: Layout, data: Data = None) -> Output:
    """List clients with their limits and last use.

    The last use is the last request in the journal.
    """
    from kvproxy.clients.client_keys import all_clients

    settings = _load_settings(data)
    clients, used = all_clients(settings), _last_use_by_client(settings.journal_location)
    shown = {"name", "previous_key_expires", *(field.name for field in fields(LimitOptions))}
    document = [client.model_dump(include=shown) | {"last_used": used.get(client.name)} for client in clients]
    rows: list[Row] = [
        {
            "Name": client.name,
            "Requests/min#": client.requests_per_minute,
            "Tokens/min#": client.tokens_per_minute,
            "In flight#?": client.concurrent_requests,
            "Stored#?": None if client.stored_bytes is None else format_bytes(client.stored_bytes),
            "Last used": None if client.name not in used else f"{format_age(used[client.name])} ago",
            "Old key until?": None if client.previous_key_expires is None else local_time(client.previous_key_expires),
        }
        for client in clients
    ]
    empty = f"no clients in {settings.data}: a proxy of this folder accepts requests without a key"
    return table_output(document, rows, empty=empty, layout=layout)


@app.subcommand
def history(*, limit: LimitOrAll = 50, layout: Layout, data: Data = None) -> Output:
    """List the last changes of clients, responses, and pins.

    With a store in a file, changes are not recorded. The newest --limit changes are listed.
    """
    from kvproxy.clients.client_keys import operator_changes

    found = operator_changes(_load_settings(data), limit or None)
    rows: list[Row] = [
        {
            "Time": table_time(each["changed"]),
            text_column("Operator"): each["operator"],
            text_column("Change"): each["change"],
        }
        for each in found
    ]
    return table_output(found, rows, empty="no changes", layout=layout)


def _last_use_by_client(journal_location: str) -> dict[str, float]:
    from kvproxy.errors import NotFound
    from kvproxy.journal.reader import JournalReader

    try:
        with closing(JournalReader(journal_location)) as reader:
            return reader.last_uses()
    except NotFound:
        return {}


@app.subcommand
def rotate(
    name: Name,
    grace: Annotated[float, duration_option(help="Time while the old key stays valid.", show_default="1d")] = 86_400.0,
    data: Data = None,
) -> Output:
    """Replace the API key of a client, and print the new one.

    The old key stays valid during --grace, so that applications can change at any time; 0 revokes it immediately. The
    client keeps its stored responses, quotas, and journal.

    Example: kvproxy keys rotate search-team --grace 7d
    """
    from kvproxy.clients.client_keys import rotate_key

    key = rotate_key(_load_settings(data), name, grace)
    return text_output({"name": name, "key": key, "grace": grace}, key)


@app.subcommand
def reset(name: Name, data: Data = None) -> Output:
    """Start the counts of a client's requests and tokens again.

    The client has its whole quota again. Running proxies apply this within two seconds.

    Example: kvproxy keys reset search-team
    """
    from kvproxy.clients.client_keys import reset_counts

    settings = _load_settings(data)
    reset_counts(settings, name)
    return text_output({"reset": name}, f"the counts of {name} start again")


@app.subcommand
def rm(name: Name, data: Data = None) -> Output:
    """Remove a client with its counts, and revoke its key.

    Running proxies apply this within two seconds.

    Example: kvproxy keys rm search-team
    """
    from kvproxy.clients.client_keys import remove_client

    settings = _load_settings(data)
    remove_client(settings, name)
    return text_output({"removed": name}, f"removed {name} from the clients of {settings.data}")


def _load_settings(data: Path | None) -> "Settings":
    folder = used_data_folder(data)
    if folder != data:
        print_note(f"data folder of the running proxy: {folder}")
    return load_settings(data=folder)
