"""What statistics mean: the state of a channel, its bins and merge, and what is derived from it."""
