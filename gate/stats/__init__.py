"""6 Statistics: numbers in, numbers out. The unit is the leg; requests inside a leg are not replicates."""
