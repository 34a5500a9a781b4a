"""The server: one process, one model, requests joined to batches. Loaded by `gemel serve` only."""
