"""Fast element-wise updates."""
