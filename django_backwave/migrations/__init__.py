"""The schema's history. Later columns are nullable or have a database default: code N-1 runs on schema N."""
