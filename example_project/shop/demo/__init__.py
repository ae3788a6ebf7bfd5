"""What `manage.py demo` needs beside its scenes: processes, waiting, and the table at its end."""
