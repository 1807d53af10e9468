"""Where code that a model wrote runs: never on the host itself."""
