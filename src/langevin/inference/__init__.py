"""`sample`, `resume` and `fit`: the loop, the chains, and what is looked at before and after."""
