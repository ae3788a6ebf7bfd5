"""One command a file: they parse, build and call; they decide nothing."""
