"""Which pairs of rows reach a score: cheap sums rule pairs out, one exact routine decides on the rest.

Two scanners give the same bits: `native_scanner.py` (compiled tiles) and `numpy_scanner.py` (where nothing was
compiled). `pairs` and `nearest` stand on top.
"""
