"""Texts in, texts out: similar pairs and search, exact or at two speeds. Below the commands of these names."""
