"""The papers' statements as functions that tests and notebooks check on small examples."""
