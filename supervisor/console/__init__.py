"""The console: the `countermand` command."""
