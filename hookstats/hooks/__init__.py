"""What is set on a model: which modules and tensors, their hooks, and the sites they feed."""
