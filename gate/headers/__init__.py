"""What a checkpoint says of itself before a byte of weights is read: two JSON files and file headers."""
