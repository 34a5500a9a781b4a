"""Classify support requests from three examples per class: `python examples/few_shot.py [MODEL]`."""

import os
import sys

from gemel.sklearn import FewShotClassifier

EXAMPLES = {
    "delivery": ["My parcel has not arrived.", "Where is my order?", "The package is late."],
    "account": ["I cannot log in.", "How do I change my password?", "My account is locked."],
    "billing": ["The invoice shows the wrong amount.", "I was charged twice.", "I want a refund."],
}
NEW = ["the courier never came", "reset my password please", "why did you take money from my card"]

texts = [text for group in EXAMPLES.values() for text in group]
labels = [name for name, group in EXAMPLES.items() for _ in group]
model = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2")
classifier = FewShotClassifier(model).fit(texts, labels)  # tune=True also fine-tunes the model
for text, name, probabilities in zip(
    NEW, classifier.predict(NEW), classifier.predict_proba(NEW), strict=True
):
    print(f"{probabilities.max():.2f}  {name:9} {text}")
