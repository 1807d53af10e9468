"""An agent as an example for ``env=agent``."""
