"""Distributions that are fitted instead of sampled: what they are, without the loop that fits them."""
