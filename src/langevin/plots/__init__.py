"""Pictures: arrays in, figure out. matplotlib is imported when the first one is drawn."""
