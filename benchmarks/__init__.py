"""Host-side costs of xfunc compared with those of its peers."""
