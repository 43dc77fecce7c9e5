"""What everybody needs: abstract values, trees, places in the user's code, what surrounds a call."""
