"""The table of an index in a folder or bucket: passages in Lance, candidates from inverted lists of faiss."""
