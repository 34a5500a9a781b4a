"""Sort support requests from three examples a class: `python examples/few_shot.py [MODEL]`."""

import os
import sys

from gemel.sklearn import FewShotClassifier

EXAMPLES = {
    "delivery": ["My parcel has not arrived.", "Where is my order?", "The package is late."],
    "account": ["I cannot log in.", "How do I change my password?", "My account is locked."],
    "billing": ["The invoice shows the wrong amount.", "I was charged twice.", "I want a refund."],
}
NEW = ["the courier never came", "reset my password please", "why did you take money from my card"]

texts = [text for some in EXAMPLES.values() for text in some]
labels = [name for name, some in EXAMPLES.items() for _ in some]
model = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("GEMEL_MODEL", "all-MiniLM-L6-v2")
classifier = FewShotClassifier(model).fit(texts, labels)  # tune=True trains the model too
for text, name, chances in zip(NEW, classifier.predict(NEW), classifier.predict_proba(NEW), strict=True):
    print(f"{chances.max():.2f}  {name:9} {text}")
