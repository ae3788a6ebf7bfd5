"""What users import and meet: @job, enqueue, results, the context, the checks."""
