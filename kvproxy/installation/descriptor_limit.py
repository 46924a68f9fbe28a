"""Raises the limit of open files to the number that the settings require."""

import logging
import resource

from kvproxy.settings import Settings

_OTHER_DESCRIPTORS = 512
"""Number of file descriptors for everything except the clients' connections."""
_log = logging.getLogger("kvproxy")


def raise_descriptor_limit(settings: Settings) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.limits.connections + len(settings.servers) * settings.forward.max_connections + _OTHER_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))
        if most < wanted:
            _log.warning("the system allows %s open files, but the settings require %s: raise ulimit -n", most, wanted)
