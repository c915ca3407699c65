"""The operators of STeP, by their names in the paper; a file for each of its tables."""
