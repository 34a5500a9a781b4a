"""The native engine: our C++ kernel over packed weights, loaded with ctypes.

Compiled at install for several processor levels; the best one that this processor supports is used. Where nothing was
compiled, or the kernel does not support the network, ONNX Runtime runs it.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.engines.engine import check_ids
from gemel.encoder.int8 import Int8Store, quantize_linear, smoothing_factors
from gemel.encoder.network import (
    Activation,
    Array,
    Block,
    Convolution,
    Linear,
    Network,
    Norm,
    Rotary,
    WordStep,
)
from gemel.errors import InputError
from gemel.options import Precision, from_environment
from gemel.types import Ids, Vectors

_ACTIVATIONS = {"gelu": 1, "gelu-tanh": 2, "relu": 3, "silu": 4}
_LEVELS = (
    "amx", "avx512bf16", "avx512vnni", "avx512", "avxvnni", "avx2", "neon-i8mm", "neon-dotprod", "baseline",
)  # fmt: skip
_KINDS: dict[Precision, int] = {"float32": 0, "int8": 1, "bfloat16": 2}  # `Kind` of kernel.cpp

VARIABLE = "GEMEL_KERNEL"  # forces a level

_CACHE_LINE = 64

_pointer, _number = ctypes.c_void_p, ctypes.c_int64


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("packed", "bias", "scale", "column_sum", "even")),
        *((name, _number) for name in ("outputs", "inputs", "kind")),
    )


class _Norm(ctypes.Structure):
    _fields_ = (("weight", _pointer), ("bias", _pointer), ("epsilon", ctypes.c_double), ("rms", _number))


class _WordStep(ctypes.Structure):
    _fields_ = (
        *((name, _Linear) for name in ("words", "gate", "out")),
        *((name, _Norm) for name in ("words_norm", "norm")),
    )


class _Convolution(ctypes.Structure):
    _fields_ = (("linear", _Linear), ("norm", _Norm), ("tokens", _number), ("activation", _number))


_BLOCK_NORMS = (
    "attention_norm", "ffn_norm", "attention_out_norm", "ffn_out_norm", "query_norm", "key_norm", "value_norm",
)  # fmt: skip


class _PackedBlock(ctypes.Structure):
    _fields_ = (
        *((name, _Linear) for name in ("qkv", "out", "up", "down")),
        *((name, _Norm) for name in _BLOCK_NORMS),
        *((name, _number) for name in ("heads", "kv_heads", "head")),
        ("rotary", _pointer),
        ("window", _number),
        ("causal", _number),
        *((name, _pointer) for name in ("relative_keys", "relative_queries", "relative_bias")),
        ("word_step", ctypes.POINTER(_WordStep)),
        ("convolution", ctypes.POINTER(_Convolution)),
        ("scale", ctypes.c_double),
    )


_NETWORK_SIZES = (
    "block_count", "table_width", "width", "ffn_width", "activation", "max_positions", "prenorm", "gated",
    "relative_rows",
)  # fmt: skip


class _Network(ctypes.Structure):
    _fields_ = (
        *((name, _pointer) for name in ("word", "positions", "relative_index")),
        ("projection", ctypes.POINTER(_Linear)),
        ("output", ctypes.POINTER(_Linear)),
        ("blocks", ctypes.POINTER(_PackedBlock)),
        ("embedding_norm", _Norm),
        ("final_norm", _Norm),
        *((name, _number) for name in _NETWORK_SIZES),
        ("word_scale", ctypes.c_double),
        ("padding", _number),
        ("padding_position", _pointer),
    )


class _WordHead(ctypes.Structure):
    _fields_ = (
        ("dense", _Linear),
        ("table", _Linear),
        ("norm", _Norm),
        *((name, _number) for name in ("activation", "logarithms", "sums")),
    )


def levels() -> list[str]:
    """The kernels that were compiled and that this processor runs, best first; empty where nothing was compiled."""
    if not _path("baseline"):
        return []
    announced: set[str] = set(_library("baseline").gemel_processor_levels().decode().split())
    return [name for name in _LEVELS if name in announced and _path(name) and _runs(name)]


def chosen_level() -> str:
    """The best level, or the one that the environment variable GEMEL_KERNEL names."""
    return from_environment(VARIABLE, levels())


def runs_bfloat16(level: str) -> bool:
    """Whether this kernel multiplies in bfloat16; the others compute in float32 where bfloat16 is requested."""
    return bool(_library(level).gemel_has_bfloat16())


def any_library() -> ctypes.CDLL | None:
    """The kernel that every processor runs, for what does not depend on the level; None: nothing was compiled."""
    return _library("baseline") if _path("baseline") else None


def why_not(network: Network) -> str | None:
    """The reason why this engine cannot run the network; None when it can."""
    if not levels():
        return "no kernel was compiled at install (it needs a C++ compiler: GCC or Clang)"
    if any(block.attention_norm is None for block in network.blocks) and not network.prenorm:
        return "the kernel expects both norms in a post-norm block"
    if network.prenorm and any(block.convolution for block in network.blocks):
        return "the kernel expects a convolution beside post-norm blocks only"
    if not network.prenorm and any(block.word_step or block.scale != 1 for block in network.blocks):
        return "the kernel expects word steps and scales in pre-norm blocks only"
    if any(block.relative and (block.causal or block.window is not None) for block in network.blocks):
        return "the kernel expects relative positions where every token sees every other"
    return None


def _path(level: str) -> Path | None:
    folder = Path(__file__).parent.parent / "native"
    path = folder / f"_{level}.so"
    return path if path.exists() else None


@cache
def _runs(level: str) -> bool:
    return bool(_library(level).gemel_runs())


@cache
def _library(level: str) -> ctypes.CDLL:
    library = ctypes.CDLL(str(_path(level)))
    network = ctypes.POINTER(_Network)
    library.gemel_processor_levels.restype = ctypes.c_char_p
    library.gemel_packed_bytes.restype = _number
    library.gemel_packed_bytes.argtypes = (_number, _number, ctypes.c_int)
    library.gemel_pack.argtypes = (_pointer, _number, _number, ctypes.c_int, _pointer)
    library.gemel_scratch_bytes.restype = _number
    library.gemel_scratch_bytes.argtypes = (network, _number, _number)
    library.gemel_hidden.restype = None
    library.gemel_hidden.argtypes = (
        network, _pointer, _pointer, _number, _number, _pointer, _pointer, ctypes.c_int, _pointer,
    )  # fmt: skip
    library.gemel_head_bytes.restype = _number
    library.gemel_head_bytes.argtypes = (ctypes.POINTER(_WordHead), _number)
    library.gemel_word_weights.restype = None
    library.gemel_word_weights.argtypes = (
        ctypes.POINTER(_WordHead), _pointer, _pointer, _number, _pointer, _pointer, ctypes.c_int,
    )  # fmt: skip
    library.gemel_fill_pieces.restype = None
    library.gemel_fill_pieces.argtypes = (_pointer, _pointer, _pointer, _number)
    library.gemel_cut_texts.restype = None
    library.gemel_cut_texts.argtypes = (_pointer, ctypes.c_char_p, _pointer, _number, _pointer, _pointer)
    return library


class NativeEngine:
    """Runs a network in float32, bfloat16 or int8, on one core per call or on several."""

    name = "native"

    def __init__(
        self,
        network: Network,
        *,
        precision: Precision = "float32",
        store: Int8Store | None = None,
        level: str | None = None,
    ) -> None:
        """`store` caches quantized weights on disk; `level` names a kernel (default: the best)."""
        reason = why_not(network)
        if reason is not None:
            raise InputError(f"the native engine cannot run this model: {reason}. Use engine='onnxruntime'")
        self.level = level or chosen_level()
        if self.level not in levels():
            raise InputError(f"no kernel {self.level!r} for this processor. Known: {', '.join(levels())}")
        falls_back = precision == "bfloat16" and not runs_bfloat16(self.level)
        self.precision: Precision = "float32" if falls_back else precision
        """What it computes in, which may be float32 instead of bfloat16."""
        self.width = network.width
        self.batch_tokens = 256  # weights are read once per batch, whose rows stay in the second-level cache
        self._library = _library(self.level)
        self._vocabulary, self._max_positions = network.vocabulary, network.max_positions
        self._alive: list[Any] = []  # everything the C structures point to
        self._packed: dict[int, _Linear] = {}
        self._rotaries: dict[Rotary, int | None] = {}
        self._kind = _KINDS[self.precision]
        self._store = (store or Int8Store()).open() if precision == "int8" else None
        self._arena = _Arena(sum(map(self._packed_bytes, network.linears)))
        self._factors = cache(lambda: smoothing_factors(network))
        self._network = self._describe(network)
        if self._store:
            self._store.save()
        self._scratch = threading.local()

    def hidden(self, ids: Ids, threads: int = 1) -> Vectors:
        """(b, t) token ids -> (b, t, width) hidden states; further threads share the matrices of the call."""
        return self.hidden_many([ids], threads)[0]

    def hidden_many(
        self, groups: Sequence[Ids], threads: int = 1, seen: Sequence[NDArray[np.int64]] | None = None
    ) -> list[Vectors]:
        """`hidden` of each group, all of them in one call. `seen`: of each text, how many tokens its tokens see."""
        for ids in groups:
            check_ids(ids, vocabulary=self._vocabulary, max_positions=self._max_positions)
        rows = np.concatenate([np.ascontiguousarray(ids, dtype=np.int32).ravel() for ids in groups])
        lengths = np.repeat([ids.shape[1] for ids in groups], [len(ids) for ids in groups])
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        longest = int(lengths.max())
        keys = None if seen is None else np.concatenate(seen).astype(np.int64)
        if keys is not None and (keys.shape != lengths.shape or (keys < 1).any() or (keys > lengths).any()):
            raise InputError(f"seen must be from 1 to the tokens of each of the {len(lengths)} texts")
        out = self._output(len(rows))
        self._library.gemel_hidden(
            self._network,
            rows.ctypes.data,
            starts.ctypes.data,
            len(lengths),
            longest,
            out.ctypes.data,
            self._memory(len(rows), longest).ctypes.data,
            threads,
            None if keys is None else keys.ctypes.data,
        )
        borders = np.cumsum([ids.size for ids in groups])[:-1]
        return [
            part.reshape(*ids.shape, self.width)
            for ids, part in zip(groups, np.split(out, borders), strict=True)
        ]

    def bytes_per_text(self, tokens: int) -> int:
        """Scratch memory and the hidden states."""
        scratch: int = self._library.gemel_scratch_bytes(self._network, tokens, tokens)
        return scratch + 4 * tokens * self.width

    def _output(self, rows: int) -> Vectors:
        """Memory for hidden states: that of this thread's last call, unless somebody still holds a result in it.

        New memory would be cleared by the operating system page by page, in each call.
        """
        memory: Vectors | None = getattr(self._scratch, "output", None)
        last: weakref.ref[Vectors] | None = getattr(self._scratch, "last", None)
        if memory is None or len(memory) < rows or (last is not None and last() is not None):
            flat = _aligned(4 * rows * self.width).view(np.float32)
            memory = self._scratch.output = flat.reshape(rows, self.width)
        # Every view of `given` keeps it alive, because its own base is not an array. Counting references to the memory
        # would depend on the version of Python.
        given: Vectors = np.frombuffer(memory.data, dtype=np.float32)
        self._scratch.last = weakref.ref(given)
        return given.reshape(memory.shape)[:rows]

    def _memory(self, rows: int, longest: int) -> NDArray[np.uint8]:
        """The working memory of this thread, which grows to its largest batch."""
        size = self._library.gemel_scratch_bytes(self._network, rows, longest)
        memory: NDArray[np.uint8] | None = getattr(self._scratch, "memory", None)
        if memory is None or memory.size < size:
            memory = self._scratch.memory = _aligned(size)
        return memory

    def _describe(self, network: Network) -> _Network:
        blocks = (_PackedBlock * len(network.blocks))(
            *(self._block(f"{number}", block, network) for number, block in enumerate(network.blocks))
        )
        self._alive.append(blocks)
        tables = network.blocks[0].relative
        rows = (
            0 if tables is None else next(t for t in (tables.keys, tables.queries) if t is not None).shape[1]
        )
        projection, output, padding = network.projection, network.output, network.padding
        return _Network(
            word=self._address(network.word),
            positions=self._address(network.positions),
            relative_index=self._address(network.relative_rows),
            projection=ctypes.pointer(self._linear("projection", projection)) if projection else None,
            output=ctypes.pointer(self._linear("output", output)) if output else None,
            blocks=blocks,
            embedding_norm=self._norm(network.embedding_norm),
            final_norm=self._norm(network.final_norm),
            block_count=len(network.blocks),
            table_width=network.word.shape[1],
            width=network.inner_width,
            ffn_width=network.ffn_width,
            activation=_ACTIVATIONS[network.activation],
            max_positions=network.max_positions,
            prenorm=network.prenorm,
            gated=network.gated,
            relative_rows=rows,
            word_scale=network.word_scale,
            padding=-1 if padding is None else padding.id,
            padding_position=None if padding is None else self._address(padding.position),
        )

    def _block(self, name: str, block: Block, network: Network) -> _PackedBlock:
        """The scale of the scores goes into the query rows of the weights, or into the norm that comes after them."""
        heads, relative = network.heads_of(block), block.relative
        scale = np.float32(heads.scale)
        query_norm, scaled = block.query_norm, heads.queries * heads.size
        if query_norm is not None:
            query_norm, scaled = replace(query_norm, weight=query_norm.weight * scale), 0
        return _PackedBlock(
            qkv=self._linear(f"{name}.qkv", block.qkv, scaled, scale),
            out=self._linear(f"{name}.out", block.out),
            up=self._linear(f"{name}.up", block.up),
            down=self._linear(f"{name}.down", block.down),
            attention_norm=self._norm(block.attention_norm),
            ffn_norm=self._norm(block.ffn_norm),
            attention_out_norm=self._norm(block.attention_out_norm),
            ffn_out_norm=self._norm(block.ffn_out_norm),
            query_norm=self._norm(query_norm),
            key_norm=self._norm(block.key_norm),
            value_norm=self._norm(block.value_norm),
            heads=heads.queries,
            kv_heads=heads.keys,
            head=heads.size,
            rotary=None if block.rotary is None else self._rotary(block.rotary),
            window=-1 if block.window is None else block.window,
            causal=block.causal,
            # The queries that meet the keys of the positions are scaled already.
            relative_keys=None if relative is None else self._tables(relative.keys, 1 / scale),
            relative_queries=None if relative is None else self._tables(relative.queries, np.float32(1)),
            relative_bias=self._address(block.relative_bias),
            word_step=self._word_step(name, block.word_step),
            convolution=self._convolution(name, block.convolution),
            scale=block.scale,
        )

    def _word_step(self, name: str, step: WordStep | None) -> ctypes._Pointer[_WordStep] | None:
        if step is None:
            return None
        described = _WordStep(
            words=self._linear(f"{name}.words", step.words),
            gate=self._linear(f"{name}.gate", step.gate),
            out=self._linear(f"{name}.words_out", step.out),
            words_norm=self._norm(step.words_norm),
            norm=self._norm(step.norm),
        )
        self._alive.append(described)
        return ctypes.pointer(described)

    def _convolution(self, name: str, step: Convolution | None) -> ctypes._Pointer[_Convolution] | None:
        if step is None:
            return None
        described = _Convolution(
            linear=self._linear(f"{name}.convolution", step.linear),
            norm=self._norm(step.norm),
            tokens=step.tokens,
            activation=_ACTIVATIONS[step.activation],
        )
        self._alive.append(described)
        return ctypes.pointer(described)

    def _rotary(self, rotary: Rotary) -> int | None:
        """The address of its table: per position the cosines of all angles, then their sines."""
        if rotary not in self._rotaries:
            self._rotaries[rotary] = self._address(np.concatenate(rotary.tables(self._max_positions), axis=1))
        return self._rotaries[rotary]

    def _tables(self, tables: Array | None, factor: np.float32) -> int | None:
        """(heads, rows, head size) packed head by head."""
        if tables is None:
            return None
        packed = np.empty(
            (len(tables), self._library.gemel_packed_bytes(*tables.shape[1:], _KINDS["float32"])),
            dtype=np.uint8,
        )
        for table, panel in zip(tables, packed, strict=True):
            weight = np.ascontiguousarray(table * factor, dtype=np.float32)
            self._library.gemel_pack(weight.ctypes.data, *weight.shape, _KINDS["float32"], panel.ctypes.data)
        return self._address(packed)

    def _linear(self, name: str, linear: Linear, scaled: int = 0, scale: np.float32 | None = None) -> _Linear:
        """The layer in the kernel's layout, its first `scaled` outputs multiplied by `scale`."""
        if id(linear) not in self._packed:  # shared blocks (ALBERT) are packed once
            self._alive.append(linear)
            self._packed[id(linear)] = self._pack(name, linear, scaled, scale)
        return self._packed[id(linear)]

    def _pack(self, name: str, linear: Linear, scaled: int, factor: np.float32 | None) -> _Linear:
        outputs, inputs = linear.shape
        factors = np.ones(outputs, np.float32)
        if factor is not None:
            factors[:scaled] = factor
        bias = linear.bias * factors if linear.bias is not None else np.zeros(outputs, np.float32)
        packed = self._arena.take(self._packed_bytes(linear))
        scale = column_sum = even = None
        if self._store is None:
            weight = linear.read()
            weight = weight * factors[:, None] if scaled else np.ascontiguousarray(weight, dtype=np.float32)
            self._library.gemel_pack(weight.ctypes.data, outputs, inputs, self._kind, packed.ctypes.data)
        else:
            small = self._store.get(name, linear, self._factors)
            self._library.gemel_pack(
                small.integers.ctypes.data, outputs, inputs, self._kind, packed.ctypes.data
            )
            scale = self._padded(small.scale * factors)
            column_sum = self._padded(small.integers.sum(axis=1, dtype=np.int64).astype(np.float32))
            even = None if small.factors is None else self._address(1 / small.factors)
        return _Linear(
            packed=self._address(packed),
            bias=self._padded(bias),
            scale=scale,
            column_sum=column_sum,
            even=even,
            outputs=outputs,
            inputs=inputs,
            kind=self._kind,
        )

    def _packed_bytes(self, linear: Linear) -> int:
        size: int = self._library.gemel_packed_bytes(*linear.shape, self._kind)
        return -(-size // _CACHE_LINE) * _CACHE_LINE

    def _norm(self, norm: Norm | None) -> _Norm:
        if norm is None:
            return _Norm()
        return _Norm(
            weight=self._address(norm.weight),
            bias=self._address(norm.bias),
            epsilon=norm.epsilon,
            rms=norm.rms,
        )

    def _padded(self, values: NDArray[np.float32]) -> int | None:
        """Per-output numbers with zeros up to a whole number of vectors, so that the kernel may read past the end."""
        return self._address(np.concatenate([values, np.zeros(64, np.float32)]))

    def _address(self, array: NDArray[Any] | None) -> int | None:
        """The address of the array, which the engine keeps alive."""
        if array is None:
            return None
        array = np.ascontiguousarray(array, dtype=np.float32 if array.dtype.kind == "f" else array.dtype)
        self._alive.append(array)
        return int(array.ctypes.data)


class NativeWordHead:
    """The head of a masked language model and SPLADE's pooling: see native/head.h.

    The word table is multiplied in `precision`, what comes before it in float32.
    """

    def __init__(
        self,
        dense: Linear,
        norm: Norm,
        table: Linear,
        activation: Activation,
        *,
        logarithms: int,
        sums: bool,
        precision: Precision,
    ) -> None:
        level = chosen_level()
        self._library = _library(level)
        kind = "float32" if precision == "bfloat16" and not runs_bfloat16(level) else precision
        self._alive: list[NDArray[Any]] = []
        self._width, self._words = dense.shape[1], table.shape[0]
        self._head = _WordHead(
            dense=self._linear(dense, "float32"),
            table=self._linear(table, kind),
            norm=_Norm(self._address(norm.weight), self._address(norm.bias), norm.epsilon, norm.rms),
            activation=_ACTIVATIONS[activation],
            logarithms=logarithms,
            sums=sums,
        )
        self._scratch = threading.local()

    def weights(self, hidden: Vectors, lengths: Sequence[int], threads: int = 1) -> Vectors:
        """(tokens, width) of texts of these lengths, one after the other -> (texts, words)."""
        rows = np.ascontiguousarray(hidden, dtype=np.float32)
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        assert rows.shape == (starts[-1], self._width), "hidden states of another model"
        size = self._library.gemel_head_bytes(self._head, len(rows))
        memory: NDArray[np.uint8] | None = getattr(self._scratch, "memory", None)
        if memory is None or memory.size < size:
            memory = self._scratch.memory = _aligned(size)
        out = np.empty((len(lengths), self._words), dtype=np.float32)
        self._library.gemel_word_weights(
            *(self._head, rows.ctypes.data, starts.ctypes.data, len(lengths), out.ctypes.data),
            *(memory.ctypes.data, threads),
        )
        return out

    def _linear(self, linear: Linear, precision: Precision) -> _Linear:
        (outputs, inputs), kind = linear.shape, _KINDS[precision]
        packed = _Arena(self._library.gemel_packed_bytes(outputs, inputs, kind)).rest()
        weight: NDArray[Any] = np.ascontiguousarray(linear.read(), dtype=np.float32)
        numbers = {"bias": np.zeros(outputs, np.float32) if linear.bias is None else linear.bias}
        if precision == "int8":
            small = quantize_linear(weight)
            weight, numbers["scale"] = small.integers, small.scale
            numbers["column_sum"] = weight.sum(axis=1, dtype=np.int64).astype(np.float32)
        self._library.gemel_pack(weight.ctypes.data, outputs, inputs, kind, packed.ctypes.data)
        self._alive.append(packed)
        addresses = {  # the kernel may read past the end
            name: self._address(np.concatenate([values, np.zeros(_CACHE_LINE, np.float32)]))
            for name, values in numbers.items()
        }
        return _Linear(packed=packed.ctypes.data, outputs=outputs, inputs=inputs, kind=kind, **addresses)

    def _address(self, array: Array | None) -> int | None:
        if array is None:
            return None
        self._alive.append(np.ascontiguousarray(array, dtype=np.float32))
        return int(self._alive[-1].ctypes.data)


def _aligned(size: int) -> NDArray[np.uint8]:
    """Bytes from the start of a cache line on: vectors and tiles that cross two lines are read at half the speed."""
    memory = np.empty(size + _CACHE_LINE, dtype=np.uint8)
    return memory[-memory.ctypes.data % _CACHE_LINE :][:size]


class _Arena:
    """All packed weights in one array, each aligned to a cache line.

    One large array, because numpy requests huge pages for those, and weights are read from end to end.
    """

    def __init__(self, size: int) -> None:
        self._free = _aligned(size)

    def take(self, size: int) -> NDArray[np.uint8]:
        taken, self._free = self._free[:size], self._free[size:]
        assert len(taken) == size, "the arena was made too small"
        return taken

    def rest(self) -> NDArray[np.uint8]:
        """What is left."""
        return self._free
