"""watch(), the handle of a recording, and the thread that writes the records."""
