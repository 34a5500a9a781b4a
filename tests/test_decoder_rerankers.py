"""Rerankers that are language models: their prompts and answers, equal to transformers and batch-invariant."""

import json

import numpy as np
import pytest

import gemel
from gemel.checkpoint.cross import read_cross
from gemel.checkpoint.pair_prompt import FORMATS, Gap, PairPrompt
from gemel.encoder.cross import PromptTokenizer
from gemel.errors import InputError, ModelError
from tests.project.test_without_torch import python
from tiny_cross import CHAT_TEMPLATE, their_answers, their_logits, tiny_cross, tiny_reranker

transformers = pytest.importorskip("transformers", reason="the tiny rerankers are made by transformers")

LEFT = ["a man is playing a guitar", "hello", "the stock market fell sharply today", "", "a man"]
RIGHT = ["a woman is playing the flute", "the cat is sleeping", "", "", "a man"]
LONG = "the stock market fell and rose and fell " * 12


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def rendered(folder, left, right, instruction=None):
    """The chat template as transformers fills it."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    first = [] if instruction is None else [{"role": "system", "content": instruction}]
    return [
        tokenizer.apply_chat_template(
            [*first, {"role": "query", "content": a}, {"role": "document", "content": b}],
            tokenize=False,
            add_generation_prompt=True,
        )
        for a, b in zip(left, right, strict=True)
    ]


# Equal to transformers.


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3", "llama", "gemma3_text"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_score_is_the_difference_of_two_logits_after_the_chat_template(tmp_path, model_type, tied):
    folder = tiny_reranker(tmp_path / "tiny", model_type, tied=tied)
    model = gemel.load_cross(folder)
    assert (model.labels, model.score_kind, model.engine_name != "torch") == (("score",), "logit", True)
    wanted = their_answers(folder, rendered(folder, LEFT, RIGHT), "was", "is")
    np.testing.assert_allclose(model.scores(LEFT, RIGHT), wanted, atol=1e-5)
    expected = 1 / (1 + np.exp(-wanted.astype(np.float64)))
    np.testing.assert_allclose(model.probabilities(LEFT, RIGHT)[:, 0], expected, atol=1e-5)


def test_one_answer_is_scored_by_its_logit_alone(tmp_path):
    folder = tiny_reranker(tmp_path / "tiny", false=None)
    wanted = their_answers(folder, rendered(folder, LEFT, RIGHT), "was", None)
    np.testing.assert_allclose(gemel.load_cross(folder).scores(LEFT, RIGHT), wanted, atol=1e-5)


def test_the_default_prompt_is_the_instruction(tmp_path):
    folder = tiny_reranker(tmp_path / "tiny")
    plain = gemel.load_cross(folder)
    settings = folder / "config_sentence_transformers.json"
    change(settings, prompts={"query": "the market rose"}, default_prompt_name="query")
    model = gemel.load_cross(folder)
    texts = rendered(folder, LEFT, RIGHT, "the market rose")
    np.testing.assert_allclose(
        model.scores(LEFT, RIGHT), their_answers(folder, texts, "was", "is"), atol=1e-5
    )
    assert model.weights_hash != plain.weights_hash


def test_the_template_may_be_in_the_settings_of_the_tokenizer(tmp_path):
    folder = tiny_reranker(tmp_path / "tiny")
    expected = gemel.load_cross(folder).scores(LEFT, RIGHT)
    (folder / "chat_template.jinja").unlink()
    change(folder / "tokenizer_config.json", chat_template=CHAT_TEMPLATE)
    np.testing.assert_array_equal(gemel.load_cross(folder).scores(LEFT, RIGHT), expected)
    change(folder / "tokenizer_config.json", chat_template=None)
    with pytest.raises(ModelError, match=r"no chat_template\.jinja"):
        gemel.load_cross(folder)


def with_words(folder, *words):
    """The tiny tokenizer with these words in the place of others."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    for word, old in zip(words, ("cat", "dog"), strict=True):
        vocabulary[word] = vocabulary.pop(old)
    path.write_text(json.dumps(content))


def test_a_plain_qwen3_reranker_is_known_by_its_name(tmp_path):
    folder = tiny_reranker(tmp_path / "Qwen3-Reranker-0.6B", modules=False, max_position_embeddings=512)
    change(folder / "tokenizer_config.json", model_max_length=500)
    with_words(folder, "yes", "no")
    model = gemel.load_cross(folder)
    texts = [FORMATS["qwen3-reranker"].prompt.filled(a, b) for a, b in zip(LEFT, RIGHT, strict=True)]
    assert texts[0].endswith(
        "\n<Query>: a man is playing a guitar\n<Document>: a woman is playing the flute<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    wanted = their_answers(folder, texts, "yes", "no")
    np.testing.assert_allclose(model.logits(LEFT, RIGHT)[:, 0], wanted, atol=1e-5)
    assert model.score_kind == "probability"
    np.testing.assert_allclose(
        model.scores(LEFT, RIGHT), 1 / (1 + np.exp(-wanted.astype(np.float64))), atol=1e-5
    )


def test_a_plain_mxbai_reranker_is_known_by_its_name(tmp_path):
    folder = tiny_reranker(
        tmp_path / "mxbai-rerank-base-v2", "qwen2", modules=False, tied=True, max_position_embeddings=512
    )
    change(folder / "tokenizer_config.json", model_max_length=500)
    model = gemel.load_cross(folder)
    texts = [FORMATS["mxbai-rerank-v2"].prompt.filled(a, b) for a, b in zip(LEFT, RIGHT, strict=True)]
    assert model.score_kind == "logit"
    np.testing.assert_allclose(model.scores(LEFT, RIGHT), their_answers(folder, texts, "1", "0"), atol=1e-5)


def test_a_conversion_to_a_sequence_classifier_gets_the_prompt_of_its_name(tmp_path):
    folder = tiny_cross(tmp_path / "Qwen3-Reranker-0.6B-seq-cls", "qwen3", max_position_embeddings=512)
    change(folder / "tokenizer_config.json", model_max_length=500)
    model = gemel.load_cross(folder)
    texts = [FORMATS["qwen3-reranker"].prompt.filled(a, b) for a, b in zip(LEFT, RIGHT, strict=True)]
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    rows = [tokenizer([text], add_special_tokens=False, return_tensors="pt")["input_ids"] for text in texts]
    wanted = [network(input_ids=row).logits[0, 0].item() for row in rows]
    np.testing.assert_allclose(model.logits(LEFT, RIGHT)[:, 0], wanted, atol=1e-5)
    plain = gemel.load_cross(folder, template="none")
    np.testing.assert_allclose(plain.logits(LEFT, RIGHT), their_logits(folder, LEFT, RIGHT), atol=1e-5)
    assert plain.weights_hash != model.weights_hash


def test_a_sequence_classifier_may_have_a_chat_template(tmp_path):
    folder = tiny_cross(tmp_path / "tiny", "qwen3")
    modality = {"message": {"method": "forward", "method_output_name": "logits", "format": "flat"}}
    settings = {"transformer_task": "sequence-classification", "modality_config": modality}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    texts = rendered(folder, LEFT, RIGHT)
    rows = [tokenizer([text], add_special_tokens=False, return_tensors="pt")["input_ids"] for text in texts]
    wanted = [network(input_ids=row).logits[0, 0].item() for row in rows]
    np.testing.assert_allclose(gemel.load_cross(folder).logits(LEFT, RIGHT)[:, 0], wanted, atol=1e-5)


def test_a_template_can_be_named(tmp_path):
    folder = tiny_reranker(tmp_path / "mine", modules=False, max_position_embeddings=512)
    change(folder / "tokenizer_config.json", model_max_length=500)
    with pytest.raises(
        ModelError, match=r"nothing says how it scores a pair.*template=\.\.\.\), one of qwen3"
    ):
        gemel.load_cross(folder)
    with pytest.raises(InputError, match="template must be one of auto, none, qwen3-reranker"):
        gemel.load_cross(folder, template="other")
    with pytest.raises(ModelError, match="no tokens 'yes' and 'no'"):
        gemel.load_cross(folder, template="qwen3-reranker")
    assert gemel.load_cross(folder, template="mxbai-rerank-v2").scores(LEFT, RIGHT).shape == (5,)


# Batch invariance, ranks, length.


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_a_pair_has_the_same_bits_alone_and_in_any_batch(tmp_path, model_type, precision):
    model = gemel.load_cross(tiny_reranker(tmp_path / "tiny", model_type), precision=precision)
    left, right = LEFT * 2, RIGHT + LEFT
    together = model.scores(left, right)
    alone = np.concatenate([model.scores([a], [b], threads=1) for a, b in zip(left, right, strict=True)])
    np.testing.assert_array_equal(together, alone)
    order = np.random.default_rng(0).permutation(len(left))
    shuffled = model.scores([left[i] for i in order], [right[i] for i in order], memory="1MB")
    np.testing.assert_array_equal(shuffled, together[order])


def test_a_ranking_says_what_its_scores_are(tmp_path):
    folder = tiny_reranker(tmp_path / "tiny")
    ranking = gemel.load_cross(folder).rank("hello", RIGHT)
    assert ranking.kind == "logit"
    sigmoid = "torch.nn.modules.activation.Sigmoid"
    change(folder / "config_sentence_transformers.json", activation_fn=sigmoid)
    bounded = gemel.load_cross(folder).rank("hello", RIGHT)
    assert bounded.kind == "probability"
    np.testing.assert_array_equal(bounded.index, ranking.index)
    np.testing.assert_allclose(bounded.score, 1 / (1 + np.exp(-ranking.score)), atol=1e-6)


def test_a_long_document_loses_its_end_and_the_prompt_stays(tmp_path):
    folder = tiny_reranker(tmp_path / "tiny")
    model = gemel.load_cross(folder)
    whole = model._tokenizer.pairs(["hello"], [LONG], None)[0]
    cut = model._tokenizer.pairs(["hello"], [LONG], 40)[0]
    ids, kept = whole.pieces[0], cut.pieces[0]
    assert (cut.tokens, cut.kept, len(kept)) == (len(ids), 40, 40)
    tail = len(ids) - ids.tolist().index(3)  # from [SEP] on
    np.testing.assert_array_equal(kept[-tail:], ids[-tail:])
    np.testing.assert_array_equal(kept[:-tail], ids[: 40 - tail])
    short = " ".join(LONG.split()[: 40 - (len(ids) - len(LONG.split()))])
    np.testing.assert_array_equal(
        model.scores(["hello"], [LONG], max_length=40, on_long="truncate"), model.scores(["hello"], [short])
    )
    with pytest.raises(
        InputError, match=r"leaves no room for the texts beside the \d+ tokens of this model's"
    ):
        model.scores(["hello"], [LONG], max_length=10)


def test_a_query_is_cut_only_where_no_document_is_left(tmp_path):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tiny_reranker(tmp_path / "tiny") / "tokenizer.json"))
    prompt = PairPrompt((("how", Gap.QUERY), (" do ", Gap.DOCUMENT, " [SEP]")))
    pairs = PromptTokenizer(tokenizer, prompt)
    words = {
        tokenizer.token_to_id(word): word for word in ("how", "do", "a", "man", "is", "the", "dog", "[SEP]")
    }

    def names(limit):
        (window,) = pairs.pairs([" a man is"], ["the dog"], limit, parallel=False)
        return " ".join(words[number] for number in window.pieces[0].tolist())

    assert names(None) == "how a man is do the dog [SEP]"
    assert names(7) == "how a man is do the [SEP]"
    assert names(5) == "how a man do [SEP]"
    with pytest.raises(InputError, match="Use at least 5"):
        names(2)


# What is refused.


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("1_LogitScore/config.json", {"true_token_id": None}, "names no 'true_token_id'"),
        ("1_LogitScore/config.json", {"true_token_id": 5000}, "does not fit a word table"),
        ("1_LogitScore/config.json", {"true_token_id": "was"}, "must be whole numbers"),
        ("1_LogitScore/config.json", {"module_input_name": "logits"}, "only of causal_logits"),
        ("1_LogitScore/config.json", {"temperature": 2.0}, "'temperature'"),
        ("config.json", {"architectures": ["Qwen3ForSequenceClassification"]}, "not a language model"),
        ("sentence_bert_config.json", {"transformer_task": "fill-mask"}, "'fill-mask' is not supported"),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"chat_template": {"chat_template": "reranker"}}},
            "'chat_template' asks for 'reranker'",
        ),
        (
            "sentence_bert_config.json",
            {"modality_config": {"message": {"format": "structured"}}},
            "'format' asks for 'structured'",
        ),
    ],
)
def test_a_file_that_would_be_misread_is_refused(tmp_path, file, values, message):
    folder = tiny_reranker(tmp_path / "tiny")
    change(folder / file, **values)
    with pytest.raises(ModelError, match=message):
        gemel.load_cross(folder)


def test_a_chat_template_that_does_more_is_refused(tmp_path):
    folder = tiny_reranker(tmp_path / "tiny")
    (folder / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    with pytest.raises(ModelError, match=r"no code of a checkpoint runs: 'for message in messages'"):
        gemel.load_cross(folder)


def test_a_language_model_is_a_reranker_only_for_load_cross(tmp_path):
    folder = tiny_reranker(tmp_path / "tiny")
    with pytest.raises(ModelError, match=r"gemel\.load_cross"):
        gemel.load(folder)
    change(folder / "config_sentence_transformers.json", model_type="SentenceTransformer")
    with pytest.raises(ModelError, match="does not call it a CrossEncoder"):
        gemel.load(folder)


def test_it_is_neither_run_by_torch_nor_trained_nor_saved(tmp_path):
    from gemel.training.cross_encoder import CrossNetwork, read_start
    from gemel.training.options import TrainOptions

    torch = pytest.importorskip("torch")
    folder = tiny_reranker(tmp_path / "tiny")
    with pytest.raises(ModelError, match="only by itself, not with torch"):
        gemel.load_cross(folder, engine="torch")
    with pytest.raises(ModelError, match="can be used, not trained"):
        CrossNetwork(read_start(folder), TrainOptions(), torch.device("cpu"))
    with pytest.raises(InputError, match="Copy its folder"):
        gemel.load_cross(folder).save(tmp_path / "two")


def test_the_checkpoint_says_what_is_read(tmp_path):
    checkpoint = read_cross(tiny_reranker(tmp_path / "tiny"))
    assert checkpoint.prompt is not None and checkpoint.answers is not None
    assert checkpoint.prompt.filled("Q", "D").startswith("[CLS] is the rain on the street: how do i reset\n")
    assert not checkpoint.typed


def test_it_works_without_torch(tmp_path):
    folder = tiny_reranker(tmp_path / "tiny")
    code = """
    import gemel
    model = gemel.load_cross(sys.argv[1])
    print(model.scores(["a man", "hello"], ["a woman", "world"]).shape, model.score_kind)
    """
    assert "(2,) logit" in python(code, str(folder))
