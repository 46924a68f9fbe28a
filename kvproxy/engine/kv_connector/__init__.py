"""KV connector: transfer of chunks between the pool and the tiers."""
