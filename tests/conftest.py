"""Settings of all tests."""

from hypothesis import settings

# The same examples in every run, so that a failure is of the change that shows it; `make properties` looks for new ones.
# A wall-clock limit per example fails on a busy machine and says nothing of the property.
settings.register_profile("turnwise", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("turnwise")
