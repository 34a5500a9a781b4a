"""DistilBERT (arXiv 1910.01108): BERT with fewer blocks, no token types, and other weight names."""

from __future__ import annotations

from gemel.checkpoint.architecture import (
    ARCHITECTURES,
    Architecture,
    Config,
    HeadLayout,
    MaskedLayout,
    key_set,
)
from gemel.encoder.network import Network
from gemel.encoder.weights import (
    BlockNames,
    CheckpointWeights,
    activation_of,
    heads_of,
    layers_of,
    positive,
)

_EPSILON = 1e-12  # fixed by the architecture, its config has no such setting

_NAMES = BlockNames(
    ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
    out="attention.out_lin",
    attention_norm="sa_layer_norm",
    up="ffn.lin1",
    down="ffn.lin2",
    ffn_norm="output_layer_norm",
)


def read(config: Config, weights: CheckpointWeights) -> Network:
    """Sinusoidal positions need no case of their own: the checkpoint stores them as a table."""
    layers = range(layers_of(config, "n_layers"))
    width, rows = positive(config, "dim"), positive(config, "max_position_embeddings")
    sizes = width, positive(config, "hidden_dim"), _EPSILON
    return Network(
        word=weights.word(width),
        positions=weights.array("embeddings.position_embeddings.weight", rows, width),
        embedding_norm=weights.norm("embeddings.LayerNorm", width, _EPSILON),
        projection=None,
        blocks=tuple(weights.block(f"transformer.layer.{n}", _NAMES, *sizes) for n in layers),
        heads=heads_of(config, width, "n_heads"),
        activation=activation_of(config, "activation"),
        max_positions=rows,
    )


def _masked(config: Config) -> MaskedLayout:
    names = "vocab_transform", "vocab_layer_norm", "vocab_projector.weight", "vocab_projector.bias"
    return MaskedLayout(*names, config.get("activation", "gelu"), _EPSILON)


ARCHITECTURES.add("distilbert")(
    Architecture(
        read,
        HeadLayout("distilbert.", "pre_classifier", "classifier", "relu"),
        class_prefix="DistilBert",
        config_keys=key_set(
            "activation attention_dropout dim dropout hidden_dim max_position_embeddings n_heads n_layers",
            "pad_token_id qa_dropout seq_classif_dropout sinusoidal_pos_embds vocab_size",
            # Not read by the architecture; configs made from a BERT's have them.
            "attention_probs_dropout_prob hidden_act hidden_dropout_prob intermediate_size layer_norm_eps",
            "position_embedding_type type_vocab_size",
        ),
        aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
        width_key="dim",
        token_types=False,
        wordpiece_vocabulary=True,
        packed_training=True,
        masked=_masked,
    )
)
