"""`make sanitize`: every fused kernel under compute-sanitizer."""
