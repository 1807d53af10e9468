"""The finished run that tests of reports use serves the tests of its folder too."""

from tests.unit.reports.conftest import _write_run, make, run_folder

__all__ = ["_write_run", "make", "run_folder"]
