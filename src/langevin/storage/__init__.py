"""A run on disk or in memory: samples, checkpoints, manifest, locks."""
