"""An example of an agent for ``env=agent``."""
