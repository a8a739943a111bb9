"""What every engine of the dialect promises, asked of the embedded engine and of a real SGLang alike."""
