"""What `langevin bench` runs."""
