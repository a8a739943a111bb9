"""Generated from proto/longturn/v1; do not edit."""
