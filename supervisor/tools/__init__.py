"""What ships: tools."""
