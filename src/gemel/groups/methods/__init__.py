"""Clustering methods, one file each; `grouping.py` has the table of them and what they take and return."""
