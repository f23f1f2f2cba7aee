"""The operators that fill states, and the ways to reach them."""
