"""Inference servers, one table each: from a server's metric names to the canonical signals."""
