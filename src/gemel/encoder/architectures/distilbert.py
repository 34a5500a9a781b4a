"""DistilBERT (arXiv 1910.01108): BERT with fewer blocks, no token types, and other weight names."""

from __future__ import annotations

from collections.abc import Mapping

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout
from gemel.encoder.architectures.config import activation_of, heads_of, layers_of, positive
from gemel.encoder.network import Array, Block, Network
from gemel.encoder.weights import CheckpointWeights

_EPSILON = 1e-12  # fixed by the architecture, its config has no such setting


def read(config: Config, weights: Mapping[str, Array]) -> Network:
    """Sinusoidal positions need no case of their own: the checkpoint stores them as a table."""
    take = CheckpointWeights(weights)
    width, rows = positive(config, "dim"), positive(config, "max_position_embeddings")
    return Network(
        word=take.word(width),
        positions=take.array("embeddings.position_embeddings.weight", rows, width),
        embedding_norm=take.norm("embeddings.LayerNorm", width, _EPSILON),
        projection=None,
        blocks=tuple(_block(config, take, layer) for layer in range(layers_of(config, "n_layers"))),
        heads=heads_of(config, width, "n_heads"),
        activation=activation_of(config, "activation"),
        max_positions=rows,
    )


def _block(config: Config, weights: CheckpointWeights, layer: int) -> Block:
    d, f, at = positive(config, "dim"), positive(config, "hidden_dim"), f"transformer.layer.{layer}"
    return Block(
        qkv=weights.stacked([f"{at}.attention.{role}_lin" for role in "qkv"], d, d),
        out=weights.linear(f"{at}.attention.out_lin", d, d),
        attention_norm=weights.norm(f"{at}.sa_layer_norm", d, _EPSILON),
        up=weights.linear(f"{at}.ffn.lin1", f, d),
        down=weights.linear(f"{at}.ffn.lin2", d, f),
        ffn_norm=weights.norm(f"{at}.output_layer_norm", d, _EPSILON),
    )


def _head(config: Config) -> HeadLayout:
    return HeadLayout("distilbert.", "pre_classifier", "classifier", "relu")


ARCHITECTURES.add("distilbert")(
    Architecture(
        read,
        _head,
        class_prefix="DistilBert",
        config_keys=frozenset(
            {
                "activation",
                "attention_dropout",
                "dim",
                "dropout",
                "hidden_dim",
                "max_position_embeddings",
                "n_heads",
                "n_layers",
                "pad_token_id",
                "qa_dropout",
                "seq_classif_dropout",
                "sinusoidal_pos_embds",
                "vocab_size",
                # Not read by the architecture; configs made from a BERT's have them.
                "attention_probs_dropout_prob",
                "hidden_act",
                "hidden_dropout_prob",
                "intermediate_size",
                "layer_norm_eps",
                "position_embedding_type",
                "type_vocab_size",
            }
        ),
        aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
        width_key="dim",
        token_types=False,
        wordpiece_vocabulary=True,
        packed_training=True,
    )
)
