"""A base and an adapter as one model."""
