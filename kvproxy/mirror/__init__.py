"""An external engine's block pool, rebuilt from the KV events that it publishes."""
