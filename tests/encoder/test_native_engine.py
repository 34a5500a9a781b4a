"""The native kernel, at every level this processor supports: equal to the reference, and batch-invariant."""

import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.encoder.test_architectures import mean_cosine, read_folder, some_ids

from gemel.checkpoint.architecture import model_types
from gemel.encoder.engines import native
from gemel.encoder.engines.engine import arithmetic
from gemel.encoder.engines.onnx import OnnxEngine
from gemel.encoder.engines.reference import PlainNetwork
from gemel.encoder.int8 import Int8Store, quantize_linear
from gemel.encoder.network import Block, Linear, Network, Norm, Rotary, rotary_speeds
from gemel.encoder.weights import read_network
from gemel.errors import InputError
from tiny import reference_network, tiny_bert, tiny_checkpoint

pytestmark = pytest.mark.skipif(
    not native.levels(), reason="no compiler was there at install: no native kernel"
)
LEVELS = native.levels()
BFLOAT16_LEVELS = [level for level in LEVELS if native.runs_bfloat16(level)]
DISTINCT = (
    [*dict.fromkeys((*LEVELS[:1], "baseline"))] if LEVELS else []
)  # the other levels have the bits of the best
FUSING = [level for level in LEVELS if level != "baseline"]  # multiply and add are rounded once, not twice
KERNELS = [
    *((precision, level) for precision in ("float32", "int8") for level in LEVELS),
    *(("bfloat16", level) for level in BFLOAT16_LEVELS),
]
SOURCE = Path(native.__file__).parent.parent / "native" / "kernel.cpp"
COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(scope="module", params=model_types())
def folder(request, tmp_path_factory):
    pytest.importorskip("transformers", reason="the reference implementation is in the train extra")
    return tiny_checkpoint(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Widths that are not multiples of the vector size: 52 wide, heads of 13, 4 + 60 tokens."""
    folder = tiny_bert(tmp_path_factory.mktemp("odd"), width=52, heads=4)
    return read_network(*read_folder(folder))


@pytest.mark.parametrize("level", DISTINCT)
def test_hidden_states_equal_the_reference(folder, level):
    import torch

    reference = reference_network(folder)
    engine = native.NativeEngine(read_network(*read_folder(folder)), level=level)
    for tokens in (1, 2, 3, 9, 17, 40, 60):
        ids = some_ids(3, tokens)
        with torch.no_grad():
            states = reference(
                input_ids=torch.from_numpy(ids).long(), attention_mask=torch.ones(ids.shape, dtype=torch.long)
            )
        np.testing.assert_allclose(engine.hidden(ids), states.last_hidden_state.numpy(), rtol=0, atol=1e-5)


def turning(width=32, length=3000):
    """One block with rotary positions and large queries and keys, so that a small angle matters."""
    random = np.random.default_rng(0)

    def linear(outputs, gain=1.0):
        return Linear((random.normal(size=(outputs, width)) * gain * width**-0.5).astype(np.float32))

    norm = Norm(np.ones(width, np.float32), None, 1e-5)
    block = Block(
        qkv=linear(3 * width, gain=2.0),
        out=linear(width),
        attention_norm=norm,
        up=linear(2 * width),
        down=linear(width),
        ffn_norm=norm,
        rotary=Rotary(rotary_speeds(160_000.0, width)),
    )
    return Network(
        word=random.normal(size=(50, width)).astype(np.float32),
        positions=None,
        embedding_norm=norm,
        projection=None,
        blocks=(block,),
        heads=1,
        activation="gelu",
        max_positions=length,
        prenorm=True,
        gated=True,
        final_norm=norm,
    )


def test_far_positions_are_rotated_as_in_the_other_engines():
    pytest.importorskip("onnxruntime")
    network = turning()
    ids = np.random.default_rng(1).integers(0, 50, (1, 3000)).astype(np.int32)
    states = native.NativeEngine(network).hidden(ids)
    # With angles in float64 it was 5e-4.
    np.testing.assert_allclose(states, OnnxEngine(network).hidden(ids), rtol=0, atol=5e-5)


@pytest.mark.parametrize(("precision", "level"), KERNELS)
@pytest.mark.parametrize("threads", [1, 3])
def test_groups_of_several_lengths_in_one_call_are_bit_identical_to_separate_calls(
    plain, precision, level, threads
):
    engine = native.NativeEngine(plain, precision=precision, level=level)
    groups = [some_ids(2, 31), some_ids(5, 7), some_ids(1, 1), some_ids(3, 17)]
    for ids, states in zip(groups, engine.hidden_many(groups, threads), strict=True):
        assert states.shape == (*ids.shape, engine.width)
        np.testing.assert_array_equal(states, engine.hidden(ids))


@pytest.mark.parametrize("level", DISTINCT)
def test_every_architecture_takes_several_lengths_in_one_call(folder, level):
    engine = native.NativeEngine(read_network(*read_folder(folder)), level=level)
    groups = [some_ids(2, 40), some_ids(3, 9)]
    for ids, states in zip(groups, engine.hidden_many(groups), strict=True):
        np.testing.assert_array_equal(states, engine.hidden(ids))


@pytest.mark.parametrize("level", DISTINCT)
def test_tokens_that_none_sees_change_no_other_in_any_architecture(folder, level):
    network = read_network(*read_folder(folder))
    engine = native.NativeEngine(network, level=level)
    groups = [some_ids(3, 60), some_ids(2, 9)]
    seen = [np.array([4, 60, 49]), np.array([1, 8])]
    several = engine.hidden_many(groups, seen=seen)
    for ids, states, counts in zip(groups, several, seen, strict=True):
        for text, own, count in zip(ids, states, counts, strict=True):
            alone = engine.hidden_many([text[None]], seen=[np.array([count])])[0][0]
            np.testing.assert_array_equal(own, alone)
            expected = PlainNetwork(network).hidden(text[None], count)[0]
            np.testing.assert_allclose(own, expected, rtol=0, atol=2e-5)
    everything = [np.full(len(ids), ids.shape[1]) for ids in groups]
    for one, other in zip(
        engine.hidden_many(groups), engine.hidden_many(groups, seen=everything), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_a_text_sees_at_least_one_token_and_no_more_than_it_has(plain):
    engine = native.NativeEngine(plain)
    for seen in ([0, 5], [5, 6], [5]):
        with pytest.raises(InputError, match="seen must be from 1"):
            engine.hidden_many([some_ids(2, 5)], seen=[np.array(seen)])


@pytest.mark.parametrize(("precision", "level"), KERNELS)
def test_tokens_that_none_sees_have_the_same_bits_on_every_level(plain, precision, level):
    ids, seen = some_ids(4, 50), [np.array([3, 20, 49, 50])]
    states = native.NativeEngine(plain, precision=precision, level=level).hidden_many([ids], seen=seen)[0]
    assert np.isfinite(states).all()
    if precision != "bfloat16" and level in FUSING:
        best = native.NativeEngine(plain, precision=precision, level=FUSING[0])
        np.testing.assert_array_equal(states, best.hidden_many([ids], seen=seen)[0])


@pytest.mark.parametrize("level", LEVELS)
def test_odd_widths_agree_with_onnx_runtime(plain, level):
    pytest.importorskip("onnxruntime")
    ids = some_ids(5, 23)
    np.testing.assert_allclose(
        native.NativeEngine(plain, level=level).hidden(ids), OnnxEngine(plain).hidden(ids), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(("precision", "level"), KERNELS)
@pytest.mark.parametrize("tokens", [1, 2, 7, 16, 33])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(plain, precision, level, tokens):
    engine = native.NativeEngine(plain, precision=precision, level=level)
    ids = some_ids(37, tokens)
    together = engine.hidden(ids)
    assert np.isfinite(together).all()
    for row in range(len(ids)):
        assert np.array_equal(engine.hidden(ids[row : row + 1])[0], together[row])
    assert np.array_equal(engine.hidden(ids[::-1])[::-1], together)


@pytest.mark.parametrize(("precision", "level"), [kernel for kernel in KERNELS if kernel[0] != "float32"])
def test_narrow_numbers_stay_near_float32(plain, precision, level):
    ids = some_ids(20, 12)
    exact = native.NativeEngine(plain, level=level).hidden(ids)
    small = native.NativeEngine(plain, precision=precision, level=level).hidden(ids)
    assert not np.array_equal(exact, small)
    assert mean_cosine(exact, small).min() > 0.995


def test_bfloat16_is_computed_in_float32_where_the_processor_has_no_instructions_for_it(plain):
    ids = some_ids(3, 9)
    for level in LEVELS:
        engine = native.NativeEngine(plain, precision="bfloat16", level=level)
        assert engine.precision == ("bfloat16" if level in BFLOAT16_LEVELS else "float32")
        exact = native.NativeEngine(plain, level=level).hidden(ids)
        assert np.array_equal(engine.hidden(ids), exact) == (level not in BFLOAT16_LEVELS)


def test_a_level_that_is_announced_but_does_not_run_is_passed_over(plain, monkeypatch):
    """As AMX under some hypervisors: it is tried in a child process before it is used."""
    best, *others = LEVELS
    monkeypatch.setattr(native, "_runs", lambda level: level != best)
    assert native.levels() == others
    if others:
        assert native.NativeEngine(plain).level == others[0]


def test_the_environment_may_name_a_level(plain, monkeypatch):
    monkeypatch.setenv("GEMEL_KERNEL", "baseline")
    assert native.NativeEngine(plain).level == "baseline" and arithmetic("bfloat16") == "float32"
    monkeypatch.setenv("GEMEL_KERNEL", "sse9")
    with pytest.raises(InputError, match="GEMEL_KERNEL is 'sse9', which this machine does not have"):
        native.NativeEngine(plain)


LENGTHS = (1, 5, 16, 17, 31, 47, 60)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_every_level_that_fuses_gives_the_same_bits(folder, precision):
    network = read_network(*read_folder(folder))
    engines = [native.NativeEngine(network, precision=precision, level=level) for level in FUSING]
    for tokens in LENGTHS:
        ids = some_ids(2, tokens)
        first, *others = (engine.hidden(ids) for engine in engines)
        for level, states in zip(FUSING[1:], others, strict=True):
            np.testing.assert_array_equal(states, first, err_msg=f"{level}, {tokens} tokens")


def compiled(folder, level, flags):
    """A kernel compiled by this test for a level of its own."""
    path = folder / f"{level}.so"
    basic = [
        "-O1",
        "-std=c++17",
        "-shared",
        "-fPIC",
        "-pthread",
        "-w",
        "-fno-math-errno",
        "-ffp-contract=off",
    ]
    subprocess.run([COMPILER, *basic, *flags, SOURCE, "-o", path], check=True)
    return path


EMULATED = {  # instructions that this processor may not have, in plain C++: what is around them is tested everywhere
    "amx": (
        "avx512vnni",
        ["-DGEMEL_EMULATE_AMX", *(f"-mavx512{part}" for part in ("f", "bw", "vl", "dq", "vnni"))],
    ),
    "avxvnni": ("avx2", ["-DGEMEL_EMULATE_AVXVNNI", "-mavx2", "-mfma"]),
}


@pytest.fixture(scope="module", params=EMULATED)
def emulated(request, tmp_path_factory):
    """Opens engines of a level whose instructions are emulated."""
    needs, flags = EMULATED[request.param]
    if needs not in LEVELS:
        pytest.skip(f"the vectors around the emulated instructions need {needs}")
    if COMPILER is None:
        pytest.skip("no C++ compiler on this machine")
    path = compiled(tmp_path_factory.mktemp("kernels"), request.param, flags)

    def engine(network, precision):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "_path", lambda level: path)
            patch.setattr(native, "levels", lambda: ["emulated"])
            patch.delenv("GEMEL_KERNEL", raising=False)
            return native.NativeEngine(network, precision=precision)

    return engine


@pytest.fixture(scope="module", params=[(52, 4), (160, 5)])
def odd_or_wide(request, tmp_path_factory):
    """Inputs narrower and wider than a row of tiles, panels of one to three vectors."""
    width, heads = request.param
    folder = tiny_bert(tmp_path_factory.mktemp(f"wide{width}"), width=width, heads=heads)
    return read_network(*read_folder(folder))


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_emulated_levels_give_the_same_bits_as_the_others(emulated, odd_or_wide, precision):
    engine = emulated(odd_or_wide, precision)
    other = native.NativeEngine(odd_or_wide, precision=precision, level=FUSING[0])
    for texts, tokens in ((1, 1), (1, 9), (1, 16), (3, 17), (2, 33), (37, 5)):
        ids = some_ids(texts, tokens)
        np.testing.assert_array_equal(engine.hidden(ids), other.hidden(ids))


def test_bfloat16_in_emulated_tiles_is_near_float32_and_batch_invariant(emulated, odd_or_wide):
    engine = emulated(odd_or_wide, "bfloat16")
    ids = some_ids(37, 7)
    together = engine.hidden(ids)
    assert mean_cosine(together, native.NativeEngine(odd_or_wide).hidden(ids)).min() > 0.999
    for row in range(0, len(ids), 6):
        np.testing.assert_array_equal(engine.hidden(ids[row : row + 1])[0], together[row])


def test_threads_that_share_an_engine_do_not_disturb_each_other(plain):
    engine = native.NativeEngine(plain)
    batches = [some_ids(1 + seed % 5, 1 + seed % 11, seed) for seed in range(60)]
    alone = [engine.hidden(ids) for ids in batches]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(np.array_equal, pool.map(engine.hidden, batches), alone))


def test_results_that_are_still_held_are_never_overwritten(plain):
    engine = native.NativeEngine(plain)
    groups = [some_ids(2, 9, seed) for seed in range(8)]
    results = [engine.hidden(ids) for ids in groups]
    parts = [engine.hidden(ids)[0, 1:3] for ids in groups]  # a view of a view is enough to hold it
    for ids, states, part in zip(groups, results, parts, strict=True):
        fresh = native.NativeEngine(plain).hidden(ids)
        np.testing.assert_array_equal(states, fresh)
        np.testing.assert_array_equal(part, fresh[0, 1:3])
    first = engine.hidden(groups[0])
    address = first.ctypes.data
    del first
    assert engine.hidden(groups[1]).ctypes.data == address  # nobody holds it: the same memory


def test_the_kernel_reads_no_memory_of_an_earlier_call(plain):
    engine = native.NativeEngine(plain, precision="int8")
    ids = some_ids(4, 5)
    first = engine.hidden(ids)
    engine.hidden(some_ids(30, 60, seed=1))  # fills the scratch memory with other numbers
    assert np.array_equal(engine.hidden(ids), first)


def test_the_kernel_says_why_it_cannot_run_a_network(plain):
    block = replace(plain.blocks[0], attention_norm=None)
    with pytest.raises(
        InputError, match=r"expects both norms in a post-norm block\. Use engine='onnxruntime'"
    ):
        native.NativeEngine(replace(plain, blocks=(block,)))
    with pytest.raises(InputError, match="no kernel 'sse9' for this processor"):
        native.NativeEngine(plain, level="sse9")


def test_weights_of_int8_are_within_half_a_step():
    weight = np.random.default_rng(0).normal(size=(6, 11)).astype(np.float32)
    weight[2] = 0
    for bits in (7, 8):
        small = quantize_linear(weight, bits=bits)
        assert np.abs(small.integers).max() == 2 ** (bits - 1) - 1
        assert (np.abs(small.integers * small.scale[:, None] - weight) <= small.scale[:, None] * 0.5001).all()


def test_quantized_weights_are_cached_next_to_the_model(tmp_path):
    folder = tiny_bert(tmp_path / "model")
    network, sources = read_network(*read_folder(folder)), (folder / "model.safetensors",)
    ids = some_ids(3, 6)
    first = native.NativeEngine(network, precision="int8", store=Int8Store(folder, sources)).hidden(ids)
    (kept,) = (folder / ".gemel").glob("int8-*.safetensors")
    written = kept.stat().st_mtime_ns
    again = native.NativeEngine(network, precision="int8", store=Int8Store(folder, sources)).hidden(ids)
    assert np.array_equal(first, again) and kept.stat().st_mtime_ns == written
    kept.write_bytes(b"not a safetensors file")
    damaged = native.NativeEngine(network, precision="int8", store=Int8Store(folder, sources)).hidden(ids)
    assert np.array_equal(first, damaged)


@pytest.mark.parametrize(("precision", "level"), KERNELS)
def test_several_threads_share_a_call_and_results_are_bit_identical(plain, precision, level):
    engine = native.NativeEngine(plain, precision=precision, level=level)
    for texts, tokens in ((1, 9), (3, 17)):
        ids = some_ids(texts, tokens)
        alone = engine.hidden(ids)
        assert all(np.array_equal(engine.hidden(ids, threads=n), alone) for n in (2, 3, 7) for _ in range(20))
