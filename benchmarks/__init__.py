"""Host-side costs of xfunc beside those of its peers."""
