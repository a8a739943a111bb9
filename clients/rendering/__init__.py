"""How observations become prompts: text, formats of a turn, and what a prompt keeps of earlier turns."""
