"""DAPO's soft penalty for answers that come close to the length limit (Yu et al. 2025)."""


def overlong_penalty(num_tokens: int, *, max_tokens: int, soft_tokens: int) -> float:
    """0 up to max - soft, then falling to -1 at the limit and beyond; added to the reward."""
    if not 0 < soft_tokens <= max_tokens:
        raise ValueError(f"need 0 < soft_tokens <= max_tokens, got {soft_tokens} and {max_tokens}")
    return -min(1.0, max(0.0, (num_tokens - (max_tokens - soft_tokens)) / soft_tokens))
