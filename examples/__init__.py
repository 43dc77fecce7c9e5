"""Programs written with xfunc, to read and to run."""
