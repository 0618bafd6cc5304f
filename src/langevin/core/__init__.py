"""The parts of a posterior: likelihoods, priors, data, random numbers, statistics."""
