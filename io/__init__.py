"""Files: rows in, rows out. Knows neither models nor terminals."""
