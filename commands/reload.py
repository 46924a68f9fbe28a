from kvproxy.commands.command import command
from kvproxy.commands.options import ProxyOptions
from kvproxy.commands.output import Output, text_output
from kvproxy.units import plural


@command
def reload(proxy: ProxyOptions) -> Output:
    """Reload the rules of a running proxy.

    SIGHUP does the same. If the file has an error, the old rules stay.

    Example: kvproxy reload
    """
    done = proxy.client().post("/admin/reload", {})
    restart = f"\nrestart the proxy for the changed settings: {', '.join(done['restart'])}" if done["restart"] else ""
    return text_output(done, f"loaded {plural(done['rules'], 'rule')}{restart}")
