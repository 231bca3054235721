"""6 Tokens: where the arms' greedy outputs part, and whether the oracle itself was undecided there. Pure."""
