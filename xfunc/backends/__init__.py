"""What runs and records programs, behind one seam."""
