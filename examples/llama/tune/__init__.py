"""What is trained besides all weights: adapters, some weights, preferences."""
