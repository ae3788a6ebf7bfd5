"""The management commands for operators."""
