"""What statistics mean: the state of a channel, its bins, its merge, what is derived from it."""
