"""What a posterior is made of: model, likelihood, prior, data, random numbers, statistics."""
