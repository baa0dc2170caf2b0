"""Training images: the sample photographs or a user's own, prepared once and cached. Knows nothing of the model."""
