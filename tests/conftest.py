"""Settings of all tests."""

from hypothesis import settings

# A wall-clock limit per example fails on a busy machine and says nothing of the property.
settings.register_profile("turnwise", deadline=None)
settings.load_profile("turnwise")
