"""KV connector: transfers chunks of keys and values between the block pool and the tiers."""
