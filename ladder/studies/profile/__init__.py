"""The study behind `ladder profile`: `study` declares it, `tracing` and `attribution` observe, `page` shows."""
