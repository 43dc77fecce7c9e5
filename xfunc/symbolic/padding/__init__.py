"""The padding pass: a program of a bucket's shape with the results of the exact shape."""
