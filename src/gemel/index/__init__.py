"""The index of texts: add, search, delete, migrate; in a folder, a bucket, on PostgreSQL or in memory."""
