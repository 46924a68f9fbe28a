"""How many files and connections a process may have open."""

import logging
import resource

from kvproxy.settings import Settings

_OTHER_FILES = 512
"""Descriptors for files, and for connections that are just being closed."""
_log = logging.getLogger("kvproxy")


def allow_descriptors(settings: Settings) -> None:
    """Raise the bound on open files, as far as the system lets a process, to what the limits on connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.limits.connections + len(settings.servers) * settings.forward.max_connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        if most < wanted:
            _log.warning("only %s files may be open, and the limits allow %s: raise ulimit -n", most, wanted)
