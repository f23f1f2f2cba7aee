"""check(): what can be known of a model, its loss and its optimizer before the training begins."""
