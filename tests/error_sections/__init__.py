"""What `error_cases` is made of."""
