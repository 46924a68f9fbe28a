import json
from dataclasses import asdict
from typing import Annotated, Any

from typer import Option

from kvproxy.commands.command import CommandGroup
from kvproxy.commands.options import Data, ProxyOptions, load_settings
from kvproxy.commands.output import Output, text_output
from kvproxy.commands.tables import Layout, Row, print_table
from kvproxy.errors import InvalidRequest
from kvproxy.units import plural

app = CommandGroup("config", help="Check the settings, or show where each comes from.")


@app.subcommand
def check(data: Data = None) -> Output:
    """Check kvproxy.toml and the environment.

    The data folder and the encryption keys are checked too. Each error is one line, with the flag, the variable, or the line
    of the file that has the invalid value.
    """
    from kvproxy.installation.checks.all_checks import check_files

    settings = load_settings(data=data)
    check_files(settings)
    rules = [rule.name for rule in settings.rules]
    return text_output({"rules": rules}, f"the settings are valid; rules: {', '.join(rules) or 'none'}")


@app.subcommand
def show(
    changed: Annotated[bool, Option("--changed", help="Only settings that are not the default.")] = False,
    layout: Layout = Layout(),
    data: Data = None,
) -> Output:
    """Show each setting with its value and its source.

    A source is a line of kvproxy.toml, an environment variable, or the default. Secrets are not shown. Flags of a running
    proxy are not included.
    """
    from kvproxy.settings.sources import setting_sources

    found = setting_sources(load_settings(data=data), data)
    found = [each for each in found if each.source != "default"] if changed else found
    rows: list[Row] = [{"Setting": each.name, "Value": _format(each.value), "Source": each.source} for each in found]
    empty = "all settings have their defaults"
    return Output([asdict(each) for each in found], lambda: print_table(rows, empty=empty, layout=layout))


def _format(value: Any) -> object:
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def init(data: Data = None) -> Output:
    """Write a commented kvproxy.toml with all settings."""
    from kvproxy.settings.template import template

    file = load_settings(data=data).data / "kvproxy.toml"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(template())
    except FileExistsError:
        raise InvalidRequest(f"{file} exists: move it away first") from None
    except OSError as error:
        raise InvalidRequest(f"cannot write {file}: {error.strerror}") from None
    return text_output({"file": str(file)}, f"wrote {file}")


def reload(proxy: ProxyOptions) -> Output:
    """Reload the rules of a running proxy.

    SIGHUP does the same. If the file has an error, the old rules stay.
    """
    done = proxy.client().post("/admin/reload", {})
    restart = f"\nrestart the proxy for the changed settings: {', '.join(done['restart'])}" if done["restart"] else ""
    return text_output(done, f"loaded {plural(done['rules'], 'rule')}{restart}")
