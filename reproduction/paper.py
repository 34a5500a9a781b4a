"""The paper's own numbers (arXiv 1908.10084), by the labels of our tables. The base-size models are meant."""

from __future__ import annotations

STS = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr", "average")
SENTEVAL = ("mr", "cr", "subj", "mpqa", "sst2", "trec", "mrpc", "average")

TABLE1 = {
    "Avg. GloVe": (55.14, 70.66, 59.73, 68.25, 63.66, 58.02, 53.76, 61.32),
    "untrained, mean": (38.78, 57.98, 57.98, 63.15, 61.06, 46.35, 58.40, 54.81),
    "untrained, CLS": (20.16, 30.01, 20.09, 36.88, 38.08, 16.50, 42.63, 29.19),
    "NLI, classification": (70.97, 76.53, 73.19, 79.09, 74.30, 77.03, 72.91, 74.89),
}
TABLE2 = {
    "untrained, mean": "46.35",
    "bi-encoder, NLI": "77.03",
    "bi-encoder, STSb": "84.67 ± 0.19",
    "cross-encoder, STSb": "84.30 ± 0.76",
    "bi-encoder, NLI + STSb": "85.35 ± 0.17",
    "cross-encoder, NLI + STSb": "88.33 ± 0.19",
}
TABLE3 = {
    "tf-idf": "46.77 / 42.95",
    "Avg. GloVe": "32.40 / 34.00",
    "bi-encoder, folds": "76.57 / 74.13",
    "cross-encoder, folds": "77.20 / 74.84",
    "bi-encoder, cross-topic": "52.34 / 50.65",
    "cross-encoder, cross-topic": "58.49 / 57.23",
}
"""Pearson / Spearman on AFS; ours is another corpus, UKP ASPECT."""
TABLE5 = {
    "Avg. GloVe": (77.25, 78.30, 91.17, 87.85, 80.18, 83.0, 72.87, 81.52),
    "untrained, mean": (78.66, 86.25, 94.37, 88.66, 84.40, 92.8, 69.45, 84.94),
    "untrained, CLS": (78.68, 84.85, 94.21, 88.23, 84.13, 91.4, 71.13, 84.66),
    "NLI, classification": (83.64, 89.43, 94.39, 89.86, 88.96, 89.6, 76.00, 87.41),
}
TABLE6 = {
    "(u,v)": 66.04,
    "(|u-v|)": 69.78,
    "(u*v)": 70.54,
    "(|u-v|,u*v)": 78.37,
    "(u,v,u*v)": 77.44,
    "(u,v,|u-v|)": 80.78,
    "(u,v,|u-v|,u*v)": 80.44,
    "NLI, mean": 80.78,
    "NLI, max": 79.07,
    "NLI, cls": 79.80,
    "STSb, mean": 87.44,
    "STSb, max": 69.92,
    "STSb, cls": 86.62,
}
TABLE7 = {"glove": 6469, "padded": 44, "sorted": 83}
"""Sentences per second on an i7-5820K: GloVe, SBERT-base without and with smart batching."""
