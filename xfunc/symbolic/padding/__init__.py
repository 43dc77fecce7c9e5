"""The padding pass: a program of a bucket's shape that computes what the exact shape would."""
