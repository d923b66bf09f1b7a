"""Models: presets, what can be indexed, loading, and what identifies a model."""
