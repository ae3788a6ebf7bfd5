"""What the docs say, held against the code."""
