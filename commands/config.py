from kvproxy.commands.command import CommandGroup
from kvproxy.commands.options import Data, ProxyOptions, load_settings
from kvproxy.commands.output import Output, text_output
from kvproxy.errors import InvalidRequest
from kvproxy.units import plural

app = CommandGroup("config", help="Check the settings.")


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
