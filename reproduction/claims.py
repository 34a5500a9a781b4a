"""The claims of the paper, each as a difference with a rule: confirmed, contradicted, or undecided."""

from __future__ import annotations

from dataclasses import dataclass

AVERAGE = "average"


@dataclass(frozen=True)
class Claim:
    """`better` minus `worse` is measured; the claim is that it is above zero, or within a number of points of zero."""

    name: str
    table: str
    text: str
    paper: str
    better: tuple[str, ...]
    """A label; of several, the spread between the best and the worst of them is meant."""
    worse: tuple[str, ...]
    dataset: str = ""
    """Empty: the only data set of the row."""
    within: float | None = None
    beyond: bool = False
    """Not in the paper: a claim from another source, or our own."""


CLAIMS = (
    Claim("glove-beats-untrained", "1", "Average GloVe vectors beat the average of an untrained BERT's outputs",
          "61.32 against 54.81", ("Avg. GloVe",), ("untrained, mean",), AVERAGE),
    Claim("mean-beats-cls", "1", "Of an untrained BERT, the mean of the outputs beats the CLS output",
          "54.81 against 29.19", ("untrained, mean",), ("untrained, CLS",), AVERAGE),
    Claim("mean-beats-cls-centered", "1", "The same, after the mean of all vectors is subtracted",
          "not in the paper", ("untrained, mean, centered",), ("untrained, CLS, centered",), AVERAGE, beyond=True),
    Claim("nli-beats-untrained", "1", "Training on NLI with classification beats the untrained encoder",
          "74.89 against 54.81", ("NLI, classification",), ("untrained, mean",), AVERAGE),
    Claim("nli-beats-glove", "1", "Training on NLI with classification beats average GloVe vectors",
          "74.89 against 61.32", ("NLI, classification",), ("Avg. GloVe",), AVERAGE),
    Claim("ranking-beats-classification", "1", "In-batch ranking on the NLI pairs beats classification",
          "not in the paper", ("NLI, in-batch ranking",), ("NLI, classification",), AVERAGE, beyond=True),
    Claim("whitening-helps", "1", "Whitening helps the untrained encoder",
          "not in the paper", ("untrained, whitening",), ("untrained, mean",), AVERAGE, beyond=True),
    Claim("flow-helps", "1", "A flow helps the untrained encoder",
          "not in the paper", ("untrained, flow",), ("untrained, mean",), AVERAGE, beyond=True),
    Claim("stsb-beats-nli", "2", "Training on STSb beats training on NLI alone",
          "84.67 against 77.03", ("bi-encoder, STSb",), ("bi-encoder, NLI",)),
    Claim("nli-first-helps-bi", "2", "NLI before STSb helps the bi-encoder",
          "85.35 against 84.67", ("bi-encoder, NLI + STSb",), ("bi-encoder, STSb",)),
    Claim("nli-ranking-first-helps-bi", "2", "The same, with in-batch ranking on the NLI pairs",
          "not in the paper", ("bi-encoder, NLI ranking + STSb",), ("bi-encoder, STSb",), beyond=True),
    Claim("nli-first-helps-cross", "2", "NLI before STSb helps the cross-encoder",
          "88.33 against 84.30", ("cross-encoder, NLI + STSb",), ("cross-encoder, STSb",)),
    Claim("more-nli-first-helps-cross", "2", "The same, with four times as many NLI pairs",
          "not in the paper", ("cross-encoder, more NLI + STSb",), ("cross-encoder, STSb",), beyond=True),
    Claim("cross-beats-bi", "2", "After NLI and STSb, the cross-encoder beats the bi-encoder",
          "88.33 against 85.35", ("cross-encoder, NLI + STSb",), ("bi-encoder, NLI + STSb",)),
    Claim("bi-equals-cross", "2", "On STSb alone, the bi-encoder is as good as the cross-encoder, within a point",
          "84.67 against 84.30", ("bi-encoder, STSb",), ("cross-encoder, STSb",), within=1.0),
    Claim("arguments-on-par", "3", "On argument pairs in folds, the bi-encoder is nearly as good as the cross-encoder, "
          "within two points", "74.13 against 74.84", ("bi-encoder, folds",), ("cross-encoder, folds",), within=2.0),
    Claim("arguments-on-par-ranked", "3", "The same, when the bi-encoder had in-batch ranking on NLI first",
          "not in the paper", ("bi-encoder after NLI ranking, folds",), ("cross-encoder, folds",), within=2.0,
          beyond=True),
    Claim("arguments-cross-topic", "3", "Across topics, the cross-encoder beats the bi-encoder",
          "57.23 against 50.65", ("cross-encoder, cross-topic",), ("bi-encoder, cross-topic",)),
    Claim("arguments-trained", "3", "A bi-encoder trained on argument pairs beats tf-idf",
          "74.13 against 42.95", ("bi-encoder, folds",), ("tf-idf, folds",)),
    Claim("senteval-nli", "5", "On SentEval, training on NLI beats the untrained mean",
          "87.41 against 84.94", ("NLI, classification",), ("untrained, mean",), AVERAGE),
    Claim("senteval-trec", "5", "On TREC, training on NLI loses against the untrained mean",
          "89.6 against 92.8", ("untrained, mean",), ("NLI, classification",), "trec"),
    Claim("senteval-cls", "5", "On SentEval, the untrained CLS output is as good as the mean, within a point",
          "84.66 against 84.94", ("untrained, mean",), ("untrained, CLS",), AVERAGE, within=1.0),
    Claim("senteval-glove", "5", "On SentEval, the untrained mean beats average GloVe vectors",
          "84.94 against 81.52", ("untrained, mean",), ("Avg. GloVe",), AVERAGE),
    Claim("difference-matters", "6", "|u-v| is the part that matters: (u,v,|u-v|) beats (u,v)",
          "80.78 against 66.04", ("(u,v,|u-v|)",), ("(u,v)",)),
    Claim("difference-over-product", "6", "|u-v| helps more than u*v: (u,v,|u-v|) beats (u,v,u*v)",
          "80.78 against 77.44", ("(u,v,|u-v|)",), ("(u,v,u*v)",)),
    Claim("product-hurts", "6", "u*v on top hurts: (u,v,|u-v|) beats (u,v,|u-v|,u*v)",
          "80.78 against 80.44", ("(u,v,|u-v|)",), ("(u,v,|u-v|,u*v)",)),
    Claim("pooling-is-minor", "6", "With classification, the parts matter more than the pooling (spread of the seven "
          "forms against spread of the three poolings)", "14.74 against 1.71",
          ("(u,v)", "(|u-v|)", "(u*v)", "(|u-v|,u*v)", "(u,v,u*v)", "(u,v,|u-v|)", "(u,v,|u-v|,u*v)"),
          ("NLI, mean", "NLI, max", "NLI, cls")),
    Claim("mean-beats-max-nli", "6", "With classification on NLI, mean pooling beats max",
          "80.78 against 79.07", ("NLI, mean",), ("NLI, max",)),
    Claim("mean-beats-cls-nli", "6", "With classification on NLI, mean pooling beats CLS",
          "80.78 against 79.80", ("NLI, mean",), ("NLI, cls",)),
    Claim("mean-beats-max-stsb", "6", "With regression on STSb, mean pooling beats max by far",
          "87.44 against 69.92", ("STSb, mean",), ("STSb, max",)),
    Claim("cls-beats-max-stsb", "6", "With regression on STSb, CLS beats max",
          "86.62 against 69.92", ("STSb, cls",), ("STSb, max",)),
    Claim("mean-beats-cls-stsb", "6", "With regression on STSb, mean pooling beats CLS",
          "87.44 against 86.62", ("STSb, mean",), ("STSb, cls",)),
)  # fmt: skip


def verdict(claim: Claim, low: float, high: float) -> str:
    """By the 95 % interval of the difference, in points."""
    if claim.within is not None:
        if -claim.within <= low and high <= claim.within:
            return "holds"
        return "does not hold" if low > claim.within or high < -claim.within else "undecided"
    if low > 0:
        return "holds"
    return "does not hold" if high < 0 else "undecided"
