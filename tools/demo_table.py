# SPDX-License-Identifier: Apache-2.0
"""Print what the demo serves and how long each stage took.

Usage: demo_table.py REPORT STAGES, the files written by site.yml (site_report_path) and by the progress callback
(VLLM_PROGRESS_SUMMARY).
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "filter_plugins"))

from vllm_present import vllm_result_table


def main(report: str, stages: str) -> None:
    results = json.loads(Path(report).read_text(encoding="utf-8"))["results"]
    plays = json.loads(Path(stages).read_text(encoding="utf-8"))["stages"]
    print()
    print(vllm_result_table(results, {play["name"]: play["seconds"] for play in plays}))


if __name__ == "__main__":
    main(*sys.argv[1:])
