"""Small models from large ones: a student learns what a teacher says of texts or of pairs of texts."""
