"""longturn package."""
