"""The measures: each yields its figures, and is run by `--only NAME`."""
