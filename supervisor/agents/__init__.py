"""What ships: agents."""
