"""`kvproxy doctor`: is the installation sound?"""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from typer import Option

from kvproxy.commands.options import ProxyOptions, Store, TierOptions, load_settings
from kvproxy.commands.output import Output, print_text
from kvproxy.errors import InvalidRequest
from kvproxy.operations.client import ConfiguredUrl, used_data_folder


def doctor(
    *,
    proxy: ProxyOptions,
    store: Store = None,
    model: Annotated[str | None, Option(help="Model of the embedded engine.")] = None,
    upstream: Annotated[list[str] | None, Option(help="Upstream to check; repeat for several.")] = None,
    embedder: Annotated[str | None, Option(help="Embedder, as in serve.")] = None,
    tiers: TierOptions,
) -> Output:
    """Check the installation, the model and the upstreams.

    It also checks the data folder, stored responses, tiers, a running proxy, and the rules and prices of paid models. Each
    failure names its fix. The exit code is 1 if a check fails; warnings are recommendations.

    Example: kvproxy doctor --upstream http://127.0.0.1:8000
    """
    from kvproxy.installation.checks.all_checks import all_checks
    from kvproxy.installation.checks.servers import CheckWarning
    from kvproxy.optional_packages import missing_extra_error

    settings = load_settings(
        data=_checked_folder(proxy),
        store=store,
        model=model,
        upstreams=upstream or None,
        embedder=embedder,
        tiers=tiers.settings(),
    )
    results = []
    for name, check in all_checks(settings, proxy.url, proxy.token):
        is_ok, is_warning = True, False
        try:
            detail = str(check())
        except CheckWarning as advice:
            is_warning, detail = True, str(advice)
        except ModuleNotFoundError as error:
            is_ok, detail = False, str(missing_extra_error(error) or error)
        except Exception as error:
            is_ok, detail = False, str(error)
        results.append({"check": name, "ok": is_ok, "warning": is_warning, "detail": detail})

    def show() -> None:
        for result in results:
            level = "warn" if result["warning"] else "ok" if result["ok"] else "FAIL"
            print_text(f"{level:<4}  {result['check']:<10}  {result['detail']}")

    return Output(results, show, exit_code=0 if all(result["ok"] for result in results) else 1)


def _checked_folder(proxy: ProxyOptions) -> Path | None:
    """Return the named data folder, or else that of the running proxy, such as `serve --demo`; None for the default."""
    if isinstance(proxy.url, ConfiguredUrl):
        with suppress(InvalidRequest):
            return used_data_folder(proxy.data)
    return proxy.data
