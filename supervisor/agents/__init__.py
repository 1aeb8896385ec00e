"""What ships: agents. `shell` runs each message as a script."""
