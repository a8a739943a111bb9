"""The environment plane: serves episodes of text environments over gRPC from supervised worker processes."""
