"""`kvproxy config`, `kvproxy init`, and `kvproxy reload`."""

import json
import os
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.options import Data, ProxyOptions, load_settings
from kvproxy.commands.output import Output, print_note, print_text, text_output
from kvproxy.commands.row_fields import RowFields
from kvproxy.commands.tables import Column, ListLayout, Row, table_output, text_column
from kvproxy.errors import (
    OTHER_FOLDER,
    InvalidRequest,
    KvproxyError,
    ProxyUnreachable,
    StoreUnavailable,
    Unauthorized,
    file_error,
)
from kvproxy.operations.client_setup import CachedTokens, ClientName
from kvproxy.operations.operation import NoParameters
from kvproxy.units import plural

if TYPE_CHECKING:
    from kvproxy.settings import Settings

app = CommandGroup("config", help="Check the settings, or show where each comes from.")


@app.subcommand
def check(
    file: Annotated[Path | None, Argument(help="Settings file, by default kvproxy.toml of the data folder.")] = None,
    data: Data = None,
) -> Output:
    """Check kvproxy.toml and the environment.

    The data folder and the encryption keys are checked too; for a named FILE, or one of KVPROXY_CONFIG, the folder may be
    missing. Each error is one line, with the flag, the variable, or the line
    of the file that has the invalid value. Rules that never apply, models that no upstream serves, and models without a price
    for clients with budgets are warnings; kvproxy doctor also compares them with the models that upstreams list.
    """
    from kvproxy.clients.client_keys import all_clients
    from kvproxy.installation.checks.access import access_warnings
    from kvproxy.installation.checks.all_checks import check_files
    from kvproxy.installation.checks.unpriced_models import unpriced_models
    from kvproxy.settings.tree import unread_settings
    from kvproxy.settings.unknown_models import unknown_models

    settings = load_settings(file=file, data=data)
    check_files(settings, requires_folder=file is None and not os.environ.get("KVPROXY_CONFIG"))
    rules = [rule.name for rule in settings.rules]
    try:
        clients = all_clients(settings)
    except StoreUnavailable:
        clients = settings.clients
    warnings = [
        *filter(None, [unread_settings(settings.data)]),
        *_shadowed_rules(settings).values(),
        *unknown_models(settings, clients),
        *unpriced_models(settings, clients),
        *access_warnings(settings),
    ]
    if not settings.journal.has_list_prices:
        warnings.append(
            f"journal.currency is {settings.journal.currency}, so only models of [journal.prices] have a price: set"
            " journal.usd_rate, the price of one US dollar, to convert list prices"
        )
    lines = [f"the settings are valid; rules: {', '.join(rules) or 'none'}", *warnings]
    return text_output({"rules": rules, "warnings": warnings}, "\n".join(lines))


def _shadowed_rules(settings: "Settings") -> dict[str, str]:
    """Return a sentence for each rule that never applies, by its name."""
    from kvproxy.settings.rules import shadowed_rules

    return {
        rule.name: f"the rule {rule.name} never applies, because {first.name} before it matches all its requests: move"
        f" {rule.name} up, or add its settings to {first.name}"
        for rule, first in shadowed_rules(settings.rules)
    }


@app.subcommand
def show(
    changed: Annotated[bool, Option("--changed", help="Only settings that are not the default.")] = False,
    layout: Annotated[ListLayout, RowFields("kvproxy.settings.sources:SettingSource")] = ListLayout(),
    data: Data = None,
) -> Output:
    """Show each setting with its value and its source.

    A source is a line of kvproxy.toml, an environment variable, or the default. Secrets are not shown. Flags of a running
    proxy are not included.
    """
    from kvproxy.settings.sources import setting_sources

    settings = setting_sources(load_settings(data=data), data)
    settings = [setting for setting in settings if setting.source != "default"] if changed else settings
    rows: list[Row] = [
        {
            Column("Setting", field="name"): setting.name,
            text_column("Value"): _format(setting.value),
            text_column("Source"): setting.source,
        }
        for setting in settings
    ]
    empty = "all settings have their defaults"
    document = [asdict(setting) for setting in settings]
    return table_output(document, rows, empty=empty, layout=layout)


def _format(value: Any) -> object:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def init(
    client: Annotated[
        ClientName | None, Option("--for", help="Write only the rule for this client, and test it.")
    ] = None,
    upstream: Annotated[str | None, Option(help="Upstream in a new file; with --for, by default the provider.")] = None,
    model: Annotated[str | None, Option(help="With --for: model of the two test requests.")] = None,
    api_key: Annotated[
        str | None, Option(help="With --for: key of the test requests, by default the client's variable.")
    ] = None,
    *,
    proxy: ProxyOptions,
) -> Output:
    """Write a commented kvproxy.toml with all settings.

    With --for, add the rule for a client instead, also to an existing file, and print the configuration of the client and its
    known problems. If a proxy runs, and the API key is known, the command also reloads the rules, sends two requests with the
    same long beginning to the provider, and prints their cached tokens. With the default
    model, they cost less than 0.02 USD.

    Example: kvproxy init --for claude-code
    """
    if client is not None:
        return _init_client(client, upstream, model, api_key, proxy)
    if model or api_key:
        raise typer.BadParameter("--model and --api-key require --for")
    from kvproxy.settings.settings_file import appended
    from kvproxy.settings.template import template

    file = load_settings(data=proxy.data, upstream=upstream).data / "kvproxy.toml"
    content = template()
    if upstream is not None:
        content = content.replace("#upstream =\n", f"upstream = {json.dumps(upstream)}\n", 1)
    if file.exists():
        raise InvalidRequest(f"{file} exists: move it away first")
    try:
        with appended(file, content):
            pass
    except OSError as error:
        raise file_error("write", file, error, OTHER_FOLDER) from None
    return text_output({"file": str(file)}, f"wrote {file}")


def _init_client(
    name: ClientName, upstream: str | None, model: str | None, api_key: str | None, proxy: ProxyOptions
) -> Output:
    from kvproxy.operations.client import ProxyClient
    from kvproxy.operations.client_setup import CLIENTS, URL, api_key_of, try_prompt_cache, write_rule
    from kvproxy.operations.proxy import reload_settings

    setup = CLIENTS[name]
    file = load_settings(data=proxy.data).data / "kvproxy.toml"
    is_new = write_rule(file, name, upstream)
    warning = _shadowed_rules(load_settings(data=proxy.data)).get(name)
    running = ProxyClient(proxy.url, proxy.token)
    try:
        is_running = proxy.client().is_reachable()
    except ProxyUnreachable:
        is_running = False
    key = api_key or api_key_of(setup)
    tried, failure = [], None
    if is_running and (key or upstream):
        try:
            running.perform(reload_settings, NoParameters())
            tried = try_prompt_cache(running, setup, model or setup.model, key)
        except KvproxyError as error:
            failure = error.message
    files = {path: text.replace(URL, proxy.url) for path, text in setup.files.items()}
    commands = setup.commands.replace(URL, proxy.url)
    document = {
        "file": str(file),
        "is_new_rule": is_new,
        "files": files,
        "commands": commands,
        "traps": list(setup.traps),
        "requests": [asdict(request) for request in tried],
        "failure": failure,
        "warning": warning,
    }

    def show() -> None:
        print_text(f"{'wrote' if is_new else 'found'} the rule {name} in {file}\n")
        if warning is not None:
            print_note(f"kvproxy: {warning}")
        print_text(f"Configuration of {setup.title}:\n")
        for path, text in files.items():
            typer.echo(f"{path}\n\n{textwrap.indent(text, '    ')}")
        typer.echo(textwrap.indent(commands, "    "))
        for trap in setup.traps:
            print_text(f"- {trap}")
        typer.echo()
        if failure is not None:
            print_note(f"kvproxy: the test request failed: {failure}")
        elif tried:
            _print_cached_tokens(tried)
        elif not is_running:
            print_text(f"Not tested: start 'kvproxy serve', then run 'kvproxy init --for {name}' again.")
        else:
            print_text(f"Not tested: set {setup.key} or --api-key, then run 'kvproxy init --for {name}' again.")

    return Output(document, show, exit_code=0 if failure is None else 1)


def _print_cached_tokens(tried: Sequence[CachedTokens]) -> None:
    for number, tokens in enumerate(tried, 1):
        counts = (tokens.prompt_tokens, tokens.cached_tokens, tokens.written_tokens)
        prompt, cached, written = ("an unreported number of" if count is None else f"{count:,}" for count in counts)
        more = "" if tokens.written_tokens is None else f", {written} written to the cache"
        print_text(f"request {number}: {prompt} prompt tokens, {cached} cached{more}")
    if tried[-1].cached_tokens:
        print_text("The provider's prompt cache works through kvproxy.")
    else:
        print_text(
            "The second request read nothing from the provider's cache: see kvproxy sessions show, or try again."
        )


def reload(proxy: ProxyOptions) -> Output:
    """Reload rules, clients, prices, and upstreams of a proxy.

    Requests in flight stay on their upstreams. SIGHUP does the same. If the file has an error, nothing changes.
    """
    from kvproxy.operations.proxy import reload_settings

    try:
        done = proxy.client().perform(reload_settings, NoParameters())
    except Unauthorized as error:
        error.message += (
            ". The file may have another admin token than the running proxy: give the former one with --token, or send SIGHUP"
            " (systemctl reload kvproxy)"
        )
        raise
    lines = [f"loaded {plural(done.rules, 'rule')} and {plural(len(done.upstreams), 'upstream')}", *done.notes]
    if done.restart:
        lines.append(f"restart the proxy for the changed settings: {', '.join(done.restart)}")
    return text_output(done, "\n".join(lines))
