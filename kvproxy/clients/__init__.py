"""Clients of the proxy: keys, quotas, and state that proxies share."""
