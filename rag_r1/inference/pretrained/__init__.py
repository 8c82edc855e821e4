"""Small pretrained models that are known by name: where they come from, and their conversion."""
