"""What several examples share."""
