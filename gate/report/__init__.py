"""8 The grid as data, and one printer for each way of reading it."""
