"""A small application as our users write them: a business table and some jobs."""
