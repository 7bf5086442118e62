"""Experiments of the paper, one per file, scaled down to a laptop."""
