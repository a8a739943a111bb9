"""What all planes share: generated messages, records and codec, settings, the command line, launcher and report."""
