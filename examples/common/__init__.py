"""Code that several examples share: comparisons over seeds, scripted episodes, and a small encoder."""
