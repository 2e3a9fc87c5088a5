"""The job of the soak, `job.py FOLDER`: counts its rows in a file, resumes, and notices when it is not alone."""

import fcntl
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

ROWS = 12
ROW_SECONDS = 0.15
FAILURE_CHANCE = 0.02  # of the job itself, at each row


def work(folder: Path) -> None:
    job_dir = Path(os.environ["EAGLE3_JOB_DIR"])
    record = folder / "records" / job_dir.name
    record.mkdir(parents=True, exist_ok=True)
    alone = os.open(record / "running", os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (record / "doubled").touch()
        raise
    if (record / "told").exists():
        (record / "doubled").touch()
    subprocess.Popen(["sleep", "3600"])  # a child of its own that must not outlive it
    rows = record / "rows"
    with open(rows, "a") as file, open(job_dir / "events.jsonl", "a") as events:
        for number in range(rows.stat().st_size // 2, ROWS):
            time.sleep(ROW_SECONDS)
            if random.random() < FAILURE_CHANCE:
                raise RuntimeError("a failure of the job's own")
            print("x", file=file, flush=True)
            event = {"v": 1, "kind": "progress", "done": number + 1, "total": ROWS, "unit": "rows"}
            print(json.dumps(event), file=events, flush=True)
        (record / "done").touch()
        print(
            json.dumps({"v": 1, "kind": "finished", "result": {"rows": ROWS}, "error": None}), file=events, flush=True
        )


if __name__ == "__main__":
    work(Path(sys.argv[1]))
