"""Train and evaluate the bundled verifier."""
