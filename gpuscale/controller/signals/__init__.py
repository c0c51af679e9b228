"""Signal sources, one file each: a source answers readings, or says why it cannot."""
