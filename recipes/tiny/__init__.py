"""The recipe of the shipped base policies: where they are stored, and the code that trains them (``recipes/tiny``)."""
