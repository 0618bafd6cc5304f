"""langevin."""
