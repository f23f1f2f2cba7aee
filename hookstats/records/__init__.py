"""Records: the statistics of every site in one step, columnar; their merging and comparison."""
