"""The embedded base policy: where it lies, and the pieces of the recipe that makes it (``recipes/tiny``)."""
