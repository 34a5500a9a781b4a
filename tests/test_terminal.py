"""Progress on standard error."""

from gemel.terminal import Progress


def test_progress_counts_to_the_end_and_is_silent_unless_shown(capsys):
    for shown in (True, False):
        progress = Progress(10, "texts", shown=shown)
        [progress.add(5) for _ in range(2)]
        progress.close()
        line = capsys.readouterr().err
        assert ("10 of 10 texts" in line) is shown
