"""The example shop and the admin in headless Chromium."""
