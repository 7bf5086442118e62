"""One experiment of the paper a file, scaled to a machine that people have."""
