"""oracle: the pinned opponent. The only copy of the pins; install, verify, serve, capture."""
