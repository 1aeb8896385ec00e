"""What ships: tools. `shell` runs a command line."""
