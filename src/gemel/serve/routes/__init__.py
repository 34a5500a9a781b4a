"""The protocols: each file reads requests, asks the services, and writes answers."""
