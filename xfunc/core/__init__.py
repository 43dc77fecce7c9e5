"""What everybody needs: abstract values, places in the user's code, what surrounds a call."""
