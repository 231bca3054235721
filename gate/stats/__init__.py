"""Statistics: numbers in, numbers out. The unit of repetition is the leg; requests inside a leg are not replicates."""
