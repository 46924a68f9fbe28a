"""Several upstreams behind one door: see `backend` for how a request finds its engine."""
