"""How the host hands out a job's log: row 7."""

import sys


def test_poll_brings_every_byte_once_across_attempts(supervisor, bash):
    """Row 7. Seen to fail when offsets of another attempt are believed."""
    job_dir = bash("printf 'a\\xff\\0b'; sleep 0.3; printf tail; exit 1")
    supervisor.wait_for_end(job_dir)
    header, whole = supervisor.poll(job_dir)
    assert whole == b"a\xff\0btail"
    inode = header["log"]["inode"]
    assert supervisor.poll(job_dir, log_offset=4, log_inode=inode, attempt=1)[1] == b"tail"
    bash("echo second")
    supervisor.wait_for_end(job_dir)
    assert supervisor.poll(job_dir, log_offset=4, attempt=1)[1] == b"second\n"
    assert (job_dir / "log.1").read_bytes() == b"a\xff\0btail"


def test_poll_notices_a_log_that_was_rotated_truncated_or_deleted(supervisor, bash):
    """Row 7. Seen to fail without the comparison of inodes, and of the offset with the size."""
    job_dir = bash("echo old line; exit 1")
    supervisor.wait_for_end(job_dir)
    header, _ = supervisor.poll(job_dir)
    seen = {"attempt": 1, "log_offset": header["log"]["size"], "log_inode": header["log"]["inode"]}
    (job_dir / "log").rename(job_dir / "log.rotated")
    (job_dir / "log").write_text("a new and longer line\n")
    assert supervisor.poll(job_dir, **seen)[1] == b"a new and longer line\n"
    (job_dir / "log").write_text("short\n")
    assert supervisor.poll(job_dir, **{**seen, "log_inode": None, "log_offset": 22})[1] == b"short\n"
    (job_dir / "log").unlink()
    assert supervisor.poll(job_dir, **seen)[1] == b""


def test_a_poll_of_a_gigabyte_reads_a_bounded_piece(supervisor, make_supervisor, bash, tmp_path):
    """Row 7. Seen to fail when `read_from` reads to the end."""
    job_dir = bash("truncate -s 1G $EAGLE3_JOB_DIR/log; printf end >> $EAGLE3_JOB_DIR/log; exit 1")
    supervisor.wait_for_end(job_dir)
    small_python = tmp_path / "python"
    small_python.write_text(f'#!/bin/bash\nulimit -v 400000\nexec {sys.executable} "$@"\n')
    small_python.chmod(0o755)
    frugal = make_supervisor(str(small_python))
    header, piece = frugal.poll(job_dir)
    assert (header["log"]["size"], len(piece)) == ((1 << 30) + 3, 1 << 20)
    assert frugal.poll(job_dir, attempt=1, log_offset=1 << 30)[1] == b"end"
