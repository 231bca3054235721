"""0 Does the gate itself judge right on this machine? Recorded faults, and equal servers against each other."""
