"""From files of text, conversations or pairs to batches, each computed from its step alone."""
