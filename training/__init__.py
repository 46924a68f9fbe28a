"""Training of the bundled models: the verifier and the demo model. Not part of the wheel."""
