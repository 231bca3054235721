"""`gate model diff`: what two checkpoints store differently, from their configurations and headers."""
