"""The autopilot: start, sampler, rate, burn-in and length, chosen and adapted by what is measured.

    warm_start → burn_in → sampling

Each stage is a run of the engine over a store of its own, in legs: after a leg, what the stage has recorded decides
whether and how it goes on. A decision is a function of what is stored, so a run that was killed decides the same again.
"""
