"""The benchmark's arithmetic, table and arguments. Nothing here is timed, no peer is started."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))

import crew  # noqa: E402
import encode  # noqa: E402
import environments  # noqa: E402
import flops  # noqa: E402
import kinds  # noqa: E402
import machine  # noqa: E402
import memory  # noqa: E402
import pages  # noqa: E402
import quality  # noqa: E402
import systems  # noqa: E402
import table  # noqa: E402
import targets  # noqa: E402
import texts  # noqa: E402
from random_model import SHAPES  # noqa: E402

PAGE = "# Speed\n\n<!-- benchmark:encode -->\nold\n<!-- /benchmark:encode -->\n\nThe end.\n"
SHORT = "# gemel\n\n<!-- benchmark:summary -->\nold\n<!-- /benchmark:summary -->\n"


def entry(role, precision, rate, **more):
    rates = {"stsb-test": {"seconds": [100 / rate, 110 / rate], "texts_per_second": rate}}
    return {
        "title": more.pop("title", role),
        "role": role,
        "precision": precision,
        "failed": None,
        "rates": rates,
        **more,
    }


@pytest.fixture
def results():
    """A run of four systems and one set: 100 texts, of which 90 are distinct and cost 27 GFLOP."""
    return {
        "date": "2020-02-02T00:00:00+00:00",
        "quick": False,
        "threads": 2,
        "max_length": 256,
        "source": "made up",
        "reference": "st-torch",
        "machine": {"processor": "Abacus", "flags": ["avx2"], "memory_gb": 8.0, "system": "Linux", "python": "3.11"},
        "texts": {"stsb-test": {"texts": 100, "distinct": 90, "gflop": 30.0, "gflop_distinct": 27.0, "rounds": 2}},
        "systems": {
            "gemel": entry("ours", "float32", 600.0, title="gemel", spearman=82.03, latency_ms={"p50": 2, "p95": 3}),
            "gemel-int8": entry("ours", "int8", 900.0, title="gemel int8", spearman=81.9),
            "st-torch": entry("peer", "float32", 300.0, title="ST", latency_ms={"p50": 9.0, "p95": 11.0}),
            "ct2": entry("peer", "float32", 400.0, title="CT2"),
            "ct2-int8": entry("peer", "int8", 600.0, title="CT2 int8"),
            "openvino": entry("reference", "float32", 590.0, title="bare"),
            "fastembed": {"title": "F", "role": "peer", "precision": "float32", "failed": "load: no such file"},
        },
        "sgemm": {"numpy": {"gflops": 180.0}, "torch": {"gflops": 200.0}},
        "start": {"gemel": {"best_seconds": 0.5, "peak_mb": 300.0}, "st-torch": {"best_seconds": 5.0}},
        "gemel": {"import_seconds": 0.01, "help_imports": []},
    }  # fmt: skip


def verdicts(results):
    return {target.what: (target.measured, target.met) for target in targets.judge(results)}


# operations


def test_operations_of_a_text_by_hand():
    shape = flops.Shape(layers=2, width=3, inner=5, queries=3, keys=3, gated=False)
    assert shape.weights == 2 * (4 * 9 + 2 * 15)  # 132
    # 4 tokens: 2 · 132 · 4 for the weights; per layer two products of 4 × 4 × 3, two operations each
    assert flops.flop(shape, 4) == 1056 + 2 * (2 * 2 * 4 * 4 * 3)
    assert flops.total_flop(shape, [4, 4]) == 2 * flops.flop(shape, 4)


def test_a_sentence_of_the_small_model_costs_about_319_million_operations(tmp_path):
    config = {"model_type": "bert", "num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536}
    config["num_attention_heads"] = 12
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert flops.flop(flops.read_shape(tmp_path), 15) == 2 * 10_616_832 * 15 + 6 * 4 * 15**2 * 384


def test_a_decoder_has_a_gate_and_fewer_heads_of_keys(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["qwen3-0.6b"]))
    shape = flops.read_shape(tmp_path)
    assert (shape.queries, shape.keys, shape.gated) == (2048, 1024, True)
    assert shape.weights == 28 * (1024 * (2 * 2048 + 2 * 1024) + 3 * 1024 * 3072)  # 440 million


# quality


def test_equal_values_share_their_mean_rank():
    assert quality.ranks(np.array([3.0, 1.0, 3.0, 2.0])).tolist() == [3.5, 1.0, 3.5, 2.0]


def test_spearman_of_the_same_order_is_100():
    assert quality.spearman(np.array([1.0, 2, 3]), np.array([10.0, 20, 900])) == pytest.approx(100)
    vectors = np.array([[1, 0], [1, 0], [1, 0], [1, 0], [0, 1], [-1, 0]], np.float32)
    assert quality.sts_spearman(vectors, [5.0, 3.0, 0.0]) == pytest.approx(100)


def test_a_wrong_vector_fails_in_float32_and_is_tolerated_in_int8():
    good = np.eye(3, dtype=np.float32)
    bad = good + np.array([[0, 0.1, 0], [0, 0, 0], [0, 0, 0]], np.float32)
    assert not quality.looks_wrong("float32", quality.agreement(2 * good, good))
    assert quality.looks_wrong("float32", quality.agreement(bad, good))
    assert not quality.looks_wrong("int8", quality.agreement(bad, good))
    assert quality.looks_wrong("int8", quality.agreement(np.roll(good, 1, 0), good))
    with np.errstate(invalid="ignore"):
        assert quality.looks_wrong("int8", quality.agreement(good * np.nan, good))


# targets


def test_targets_are_ratios_within_the_run(results):
    result = verdicts(results)
    assert result["stsb-test, float32, times sentence-transformers torch"] == ("2.00", True)
    assert result["stsb-test, float32, times the best float32 peer (ct2)"] == ("1.50", True)
    assert result["stsb-test, int8, times sentence-transformers torch"] == ("3.00", True)
    assert result["stsb-test, int8, times the best int8 peer (ct2-int8)"] == ("1.50", True)
    assert result["STSb-test Spearman lost by int8, points"] == ("0.13", True)
    assert result["start to first vector, peak memory, MB"] == ("300", False)
    assert result["gemel --help loads"] == ("nothing heavy", True)
    assert result["installed size without the model, MB"] == ("not measured", None)


def test_the_share_of_the_limit_counts_only_work_that_was_done(results):
    # 600 texts/s of 100 = 6 passes per second, of 27 GFLOP each without the repeats
    assert targets.limit_share(results, "stsb-test") == pytest.approx(
        {"numpy": 162 / 180, "torch": 162 / 200}
    )
    assert verdicts(results)["stsb-test, float32, part of the sgemm limit"] == ("81%", False)


def test_a_failed_or_wrong_peer_is_never_the_best(results):
    results["systems"]["ct2"]["wrong"] = True
    assert targets.best_peer(results, "float32", "stsb-test") == "st-torch"
    results["systems"]["st-torch"]["failed"] = "it died"
    assert targets.best_peer(results, "float32", "stsb-test") is None
    assert verdicts(results)["stsb-test, float32, times the best float32 peer"] == ("not measured", None)


# table


def test_the_table_names_every_system_and_every_failure(results):
    block = table.render(results)
    for name, system in results["systems"].items():
        assert f"| {system['title']} " in block or f"- {name} failed: {system['failed']}" in block
    row = next(line for line in block.splitlines() if line.startswith("| gemel int8"))
    assert [cell.strip() for cell in row.split("|")[1:6]] == ["gemel int8", "900", "3.00", "1.50", "81.90"]
    assert "10 texts are repeats" in block
    assert "**not met**" in block
    assert "trial" not in block


def test_a_quick_run_is_labeled_as_not_meaningful(results):
    results["quick"] = True
    assert "say nothing about speed" in table.render(results)


def test_the_table_is_checked_and_written_into_the_page(results, tmp_path, capsys):
    file, page, readme = tmp_path / "encode.json", tmp_path / "speed.md", tmp_path / "README.md"
    file.write_text(json.dumps(results))
    page.write_text(PAGE)
    readme.write_text(SHORT)
    both = ["--results", str(file), "--page", str(page), "--readme", str(readme)]
    assert table.main(["--check", *both]) == 1
    assert "table.py --write" in capsys.readouterr().err
    assert table.main(["--write", *both]) == 0
    assert table.main(["--check", *both]) == 0
    text = page.read_text()
    assert text.startswith("# Speed\n\n<!-- benchmark:encode -->\nAbacus (avx2), 2 threads")
    assert text.endswith("<!-- /benchmark:encode -->\n\nThe end.\n")
    assert "old" not in text
    short = readme.read_text()
    assert "old" not in short
    assert [line.split("|")[1].strip() for line in short.splitlines() if line.startswith("| ")][1] == "gemel"


def test_a_page_without_markers_and_missing_results_are_refused(results, tmp_path, capsys):
    file, page = tmp_path / "encode.json", tmp_path / "README.md"
    page.write_text("nothing")
    assert table.main(["--check", "--results", str(file), "--page", str(page)]) == 2
    file.write_text(json.dumps(results))
    assert table.main(["--check", "--results", str(file), "--page", str(page)]) == 2
    assert "add the two lines" in capsys.readouterr().err


def test_the_readme_shows_the_kept_results():
    if not (FOLDER / "results" / "encode.json").exists():
        pytest.skip("no results are kept in this checkout")
    assert table.main(["--check"]) == 0


# texts


def test_a_quotation_mark_is_a_character(tmp_path):
    file = tmp_path / "a.tsv.gz"
    file.write_bytes(gzip.compress(b'left\tright\n"a\tb"c"\n'))
    assert texts.read_tsv(file) == [{"left": '"a', "right": 'b"c"'}]


def test_without_the_data_the_sample_is_varied(tmp_path):
    result = texts.read_texts(tmp_path, lambda block: [len(text.split()) for text in block], 256, 20)
    assert [len(result.sets[name]) for name in texts.SETS] == [2_758, 10_000, 20]
    assert len(set(result.sets[texts.MANY])) == 10_000
    assert all(len(text.split()) >= 256 for text in result.sets[texts.LONG])
    assert len(result.sets["query"]) == 200
    assert result.gold == []
    assert "no data folder" in result.source


def test_a_million_sentences_are_a_million():
    assert memory.MOST >= 1_000_000
    assert len(set(memory.sentences(20_000))) == 20_000
    assert np.gcd(1_000_003, memory.MOST) == 1  # so all of them differ, not only these


# arguments and systems


def test_all_systems_run_by_default_and_names_choose_families():
    settings = encode.settings_from(encode.parser().parse_args([]))
    assert [system.name for system in settings.systems] == [system.name for system in systems.SYSTEMS]
    assert (settings.rounds, settings.threads, settings.million) == (5, 2, None)
    assert settings.environments.install
    chosen = encode.settings_from(
        encode.parser().parse_args(["--only", "ct2,st-onnx", "--environments", "x"])
    )
    names = ["st-onnx", "st-onnx-int8", "ct2", "ct2-bfloat16", "ct2-int8"]
    assert [system.name for system in chosen.systems] == names
    assert not chosen.environments.install


def test_the_lower_levels_of_the_processor_are_systems_of_their_own():
    below = systems.level_systems(["amx", "avx512vnni", "avx2"])
    names = ["gemel-avx512vnni", "gemel-avx512vnni-int8", "gemel-avx2", "gemel-avx2-int8"]
    assert [system.name for system in below] == names
    assert all(system.options["level"] in system.name and system.role == "ours" for system in below)


def test_quick_keeps_no_results_and_runs_two_rounds():
    options = encode.parser().parse_args(["--quick", "--sets", "long,stsb-test"])
    settings = encode.settings_from(options)
    assert settings.rounds == 2
    assert settings.sets == ["stsb-test", "long"]
    assert options.out is None


def test_unknown_names_are_refused(capsys):
    assert encode.main(["--only", "bert-as-a-service"]) == 2
    assert "unknown system 'bert-as-a-service'. Known: gemel, " in capsys.readouterr().err
    with pytest.raises(SystemExit) as exit_:
        encode.main(["--sets", "stsb-dev"])
    assert exit_.value.code == 2
    assert memory.main(["--count", "0"]) == 2


def test_every_system_has_a_script_an_environment_and_an_export_that_exist():
    for system in systems.SYSTEMS:
        assert (FOLDER / "peers" / system.script).exists()
        assert system.environment is None or system.environment in systems.ENVIRONMENTS
        assert system.prepared is None or system.prepared in systems.PREPARATIONS
    assert len({system.name for system in systems.SYSTEMS}) == len(systems.SYSTEMS)


def test_a_missing_environment_is_a_reason_and_not_a_crash(tmp_path):
    crew_ = crew.Crew(tmp_path, tmp_path, environments.Environments(tmp_path, install=False), tmp_path, 2)
    torch = next(system for system in systems.SYSTEMS if system.name == "st-torch")
    crew_.load(torch, dim=384)
    assert crew_.running() == []
    assert crew_.report["st-torch"]["failed"].startswith("no environment 'st' in ")
    crew_.close()


def test_a_worker_answers_with_its_error_and_is_dropped(tmp_path):
    (tmp_path / "texts.json").write_text("{}")
    folders = environments.Environments(tmp_path, install=False)
    crew_ = crew.Crew(tmp_path / "no-model", tmp_path / "texts.json", folders, tmp_path, 1)
    crew_.load(systems.SYSTEMS[0], dim=384)
    assert crew_.running() == []
    assert crew_.report["gemel"]["failed"].startswith("load: ")
    assert str(tmp_path) not in crew_.report["gemel"]["failed"]
    crew_.close()


def test_reasons_contain_no_machine_paths():
    result = crew.without_paths("no file '/some/where/on-disk/model.onnx' at https://a.org/b")
    assert result == "no file '…/model.onnx' at https://a.org/b"


def test_the_weight_of_an_environment_leaves_pip_out(tmp_path):
    for name, size in (
        ("gemel/a.py", 3_000_000),
        ("pip/b.py", 5),
        ("pip-25.0.dist-info/c", 5),
        ("d.py", 1_000_000),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    assert environments.size_mb(tmp_path, leave_out=("pip",)) == 4.0


def test_the_machine_is_described_without_its_name():
    result = machine.describe()
    assert result["cores"] >= 1
    assert "processor" in result
    assert "node" not in result


@pytest.mark.parametrize("script", ["encode.py", "kinds.py", "memory.py", "table.py"])
def test_help_needs_no_peer(script):
    done = subprocess.run(
        [sys.executable, str(FOLDER / script), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "python benchmarks/" in done.stdout


KINDS = {
    "machine": {"processor": "Abacus"},
    "threads": 2,
    "models": {"dense": "small", "late": "tokens"},
    "late_form": "float16",
    "candidates": 50,
    "sets": {"toy": {"queries": 3, "documents": 1200}},
    "rows": [
        {"dataset": "toy", "search": "dense", "ndcg@10": [40.0, 35.5, 44.4], "mrr@10": [50.0, None, None],
         "recall@100": [None, None, None], "ms_per_query": 1.234, "ms_per_document": 2.5, "bytes_per_document": 1536.0},
        {"dataset": "toy", "search": "words", "ndcg@10": [38.0, 33.0, 42.0], "mrr@10": [49.0, 44.0, 54.0],
         "recall@100": [80.0, 70.0, 90.0], "difference": [-2.0, -4.0, 0.1], "ms_per_query": 0.1},
    ],
}  # fmt: skip


def test_the_kinds_of_search_are_a_table_per_collection():
    block = pages.kinds(KINDS)
    assert "Abacus, 2 threads; dense: small, late: tokens; words: BM25" in block
    assert "toy, 3 queries, 1,200 documents:" in block
    first, second = ([cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()[-2:])
    assert first == ["dense", "40.0 [35.5, 44.4]", "50.0", "–", "–", "1.23", "2.50", "1,536"]
    assert second[4:] == ["-2.0 [-4.0, +0.1]", "0.10", "–", "–"]


def test_a_table_without_results_says_what_makes_them(tmp_path):
    assert "python benchmarks/kinds.py" in pages._block(tmp_path / "kinds.json", pages.kinds)


def test_questions_with_answers_become_a_collection(tmp_path):
    rows = ["question\tanswer_sentence\tlabel", "who\tme\t1", "who\tyou\t0", "what\tyou\t0", "why\tme\t0"]
    (tmp_path / "qa.tsv").write_text("\n".join([*rows, "why\tso\t1"]) + "\n")
    collection = kinds.passages(tmp_path / "qa.tsv")
    assert collection.queries == ("who", "why")
    assert collection.corpus == ("me", "you", "so")
    assert collection.gains == ({0: 1.0, 1: 0.0}, {0: 0.0, 2: 1.0})
    assert collection.left_out == 1
    part = kinds.part_of(collection, 2)
    assert part.corpus == ("me", "so")
    assert part.gains == ({0: 1.0}, {0: 0.0, 1: 1.0})
    assert kinds.part_of(collection, 9).corpus == collection.corpus


def test_words_are_fused_with_each_model_and_all_together():
    assert [list(each) for each in kinds.hybrids(["dense", "words"])] == [["dense", "words"]]
    names = [list(each) for each in kinds.hybrids(["dense", "words", "late"])]
    assert names == [["dense", "words"], ["late", "words"], ["dense", "words", "late"]]


def test_the_tables_of_the_pages_are_those_of_the_results():
    checked = subprocess.run(
        [sys.executable, FOLDER / "pages.py", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
