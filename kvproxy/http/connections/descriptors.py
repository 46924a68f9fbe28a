"""The limit of open files."""

import logging
import resource

from kvproxy.settings import Settings

_OTHER_FILES = 512
"""Descriptors for files and closing connections."""
_log = logging.getLogger("kvproxy")


def allow_descriptors(settings: Settings) -> None:
    """Raise the limit of open files to the number that the connection limits require, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.limits.connections + len(settings.servers) * settings.forward.max_connections + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        if most < wanted:
            _log.warning("the system allows %s open files, but the settings require %s: raise ulimit -n", most, wanted)
