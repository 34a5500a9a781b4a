"""The soak's judgment and its picture, on made-up samples. No server is started."""

import asyncio
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import soak
import soak_clients
from soak_clients import Seen


def watched(memory=lambda second: 100.0, kills=(10.0, 20.0)):
    samples = [soak.Sample(float(second), memory(second), 30, 12) for second in range(120)]
    return soak.Watched(samples, list(kills), [3.0, 4.0], 2)


def result(seen, **changes):
    documents = {"missing": 0, "stable": soak.STABLE, "acknowledged": 5}
    return {"ended_with": 0, "documents": documents, "server": soak.figures(seen), "minutes": 10, **changes}


def test_a_run_without_faults_has_no_problems():
    seen = watched()
    assert soak.problems(result(seen), {"good": Seen()}, seen, 10) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"ended_with": -9}, "ended with -9"),
        ({"documents": {"missing": 2, "stable": soak.STABLE}}, "2 acknowledged documents are missing"),
        ({"documents": {"missing": 0, "stable": 1}}, "1 of"),
    ],
)
def test_an_exit_and_lost_documents_are_problems(changes, expected):
    seen = watched()
    (problem,) = soak.problems(result(seen, **changes), {}, seen, 10)
    assert expected in problem


def test_a_wrong_answer_a_500_and_growing_memory_are_problems():
    seen, good = watched(lambda second: 100.0 + 5 * second), Seen()
    good.note(500, 0.0)
    good.note(503, 0.0)
    good.wrong.append("other bits for rows [1]")
    actual = soak.problems(result(seen), {"good": good}, seen, 10)
    assert [each.partition(":")[0] for each in actual[:2]] == ["good", "good"]
    assert "status 500" in actual[0] and "memory_mb grew" in actual[2]
    assert good.report()["answers"] == {"500": 1, "503": 1}


def test_the_picture_is_an_image_with_a_line_for_every_kill():
    seen = watched()
    tree = ElementTree.fromstring(soak.picture(seen, {"minutes": 2}))
    lines = [each for each in tree.iter() if each.tag.endswith("polyline")]
    assert len(lines) == 3 and all(len(each.get("points").split()) == 120 for each in lines)
    assert sum(each.tag.endswith("}line") for each in tree.iter()) == 6


def test_the_clients_call_a_server_and_record_its_answers():
    async def go():
        async def answer(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = soak_clients.Client(server.sockets[0].getsockname()[1], "k" * 20)
        try:
            return await client.post("/embed", b"")
        finally:
            client.close()
            server.close()

    assert asyncio.run(go()) == (429, b"{}")
