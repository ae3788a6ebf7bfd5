"""The example project: settings, URLs and the WSGI application."""
