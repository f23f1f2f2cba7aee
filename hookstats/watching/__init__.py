"""watch(): the handle of a recording, and the thread that carries its records away."""
