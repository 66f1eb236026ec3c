"""Long commands say now and then how far they are."""

from batchjob_stats_db.admin.commands import progress_of


def test_a_line_every_ten_seconds(capsys):
    now = [0.0]
    progress = progress_of("import", 0, 200, clock=lambda: now[0])
    for second in range(1, 22):
        now[0] = second
        progress(5 * second, f"{second} jobs")
    assert capsys.readouterr().err.splitlines() == [
        "import: 25%, 10 jobs, 30 s left",
        "import: 50%, 20 jobs, 20 s left",
    ]
