"""Reports: pure functions of a folder of records."""
