"""The Sentence-BERT paper (arXiv 1908.10084) run again with gemel: plans, results, and a page made of them."""
