"""The example project: its demo, and its stand-in for a payment gateway."""
