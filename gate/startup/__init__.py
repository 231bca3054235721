"""The flow of `gate startup`: both servers started in turns, from a cold or a warm checkpoint, to the first token."""
