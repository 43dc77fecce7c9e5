"""Calls: arguments, keys, entries; and the stages traced, lowered, compiled."""
