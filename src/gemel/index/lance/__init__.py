"""The embedded table: passages in Lance, found through lists of faiss."""
