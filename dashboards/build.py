"""Write the dashboards' JSON from the code beside it; `--check` writes nothing and exits 1 on a difference."""

import argparse
import sys
from pathlib import Path

import cost
import fleet
import gpus
import health
import sharing
import workloads
from grafana_foundation_sdk.cog.encoder import JSONEncoder

FOLDER = Path(__file__).resolve().parent
BOARDS = {
    f"{room.__name__}.json": room.board for room in (fleet, workloads, gpus, sharing, cost, health)
}


def main() -> int:
    """Build both; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, exit 1 on a difference"
    )
    check = parser.parse_args().check
    code = 0
    for name, board in BOARDS.items():
        text = JSONEncoder(sort_keys=True, indent=2).encode(board()) + "\n"
        file = FOLDER / name
        if file.exists() and file.read_text() == text:
            continue
        if check:
            sys.stderr.write(f"dashboards/{name} is not up to date: make dashboards\n")
            code = 1
        else:
            file.write_text(text)
            sys.stderr.write(f"dashboards/{name} written\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
