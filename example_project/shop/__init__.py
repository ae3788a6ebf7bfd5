"""A small shop: orders, and the jobs that follow from them."""
