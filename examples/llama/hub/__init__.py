"""Models in Hugging Face's format: read, and written."""
