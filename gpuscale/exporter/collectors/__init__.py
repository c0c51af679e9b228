"""Collectors, one family of values each: read, name, nothing else."""
