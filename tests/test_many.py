"""A hundred thousand texts: the right rows, in bounded working memory."""

import numpy as np

import gemel
from tiny import tiny_bert


def test_a_hundred_thousand_texts_come_back_in_order(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "tiny", layers=1))
    texts = [f"{n % 50_000:x}" for n in range(100_000)]
    report = model.encode_report(texts, memory="20MB")
    assert report.vectors.shape == (100_000, 32) and np.isfinite(report.vectors).all()
    assert report.duplicates == 50_000
    assert np.array_equal(report.vectors[:50_000], report.vectors[50_000:])
    for position in (0, 777, 49_999):
        assert np.array_equal(model.encode([texts[position]])[0], report.vectors[position])
