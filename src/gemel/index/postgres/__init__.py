"""The table of an index on PostgreSQL with pgvector: one schema, one table for each index."""
