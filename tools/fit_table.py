#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sets the planner's estimates of device memory beside what others published: one table.

tools/fit_table.py              the table
tools/fit_table.py --markdown   the same as docs/reference/fit.md

The published figures are in tests/fixtures/fit/published.yml, each with its source. Exit status 1: an estimate is
further off than LIMITS allows, or the planner's yes or no differs from the publisher's.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import ansible.module_utils
import yaml

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

sys.path.insert(0, str(ROOT))

from ansible.module_utils.vllm_ansible.plan.catalogue import read_catalogue  # noqa: E402 - needs the path above
from ansible.module_utils.vllm_ansible.plan.fit import sizes  # noqa: E402
from ansible.module_utils.vllm_ansible.plan.models import read_quantisation, read_shape  # noqa: E402
from ansible.module_utils.vllm_ansible.plan.reader import Reader  # noqa: E402
from ansible.module_utils.vllm_ansible.plan.rows import candidates  # noqa: E402

from tools import golden  # noqa: E402

PUBLISHED = ROOT / "tests" / "fixtures" / "fit" / "published.yml"
GIB = 1024**3
# Largest error of each figure. Weights are counted; activations and buffers depend on versions. The KV cache gets what
# the rest leaves, so the rest is what is compared.
LIMITS = {"weights": 0.03, "token": 0.02, "activation": 0.20, "all but KV cache": 0.12}


class Line(NamedTuple):
    """One figure of one deployment; sizes in GiB, a token in bytes, `serves` as 1 or 0."""

    deployment: str
    figure: str
    published: float
    estimated: float
    source: str

    @property
    def error(self) -> float:
        return self.estimated / self.published - 1 if self.published else self.estimated

    @property
    def off(self) -> bool:
        return abs(self.error) > LIMITS.get(self.figure, 0)


def complain(field: str, seen: Any, wanted: str) -> None:
    raise ValueError(f"{field} has to be {wanted}, not {seen!r}")


def newest_row(backend: str) -> dict[str, Any]:
    """Return the row that newer hosts of `backend` get; its figures are what the planner uses."""
    known = read_catalogue(golden.catalogue(), None, lambda *told: complain(*told[1:]))
    families = {"ascend": "a3", "cuda": "hopper"}
    found = [row for row in candidates(known, backend, None) if families[backend] in row.families]
    return found[0]._asdict()


def lines() -> list[Line]:
    """Return every published figure with the estimate for it."""
    data = yaml.safe_load(PUBLISHED.read_text())
    rows = {backend: newest_row(backend) for backend in ("ascend", "cuda")}
    found = []
    for entry in data["deployments"]:
        config = data["models"][entry["model"]]
        shape = read_shape(Reader(config, entry["model"], complain), config["architecture"])
        stored = data["schemes"].get(entry.get("scheme"))
        quantisation = read_quantisation(Reader(stored, "scheme", complain)) if stored else None
        scheme = sizes.scheme_of(shape, quantisation, 2)
        layout = sizes.Layout(**entry["layout"])
        load = sizes.Load(**entry.get("load", {"length": 1, "sequences": 1, "step_tokens": 1}))
        backend = entry["backend"]
        device = int(entry.get("device_gib", 0) * GIB)
        block = rows[backend]["mla_block_tokens" if shape.mla else "block_tokens"]
        whole = int(device / sizes.USABLE[backend])
        overheads = sizes.taken(backend, rows[backend]["memory"], entry.get("utilisation", 0.9), block, whole)
        memory = sizes.memory(shape, scheme, layout, load, overheads, device)
        weights = sizes.stage_weights(shape, scheme, layout, load.drafts)
        fits = memory.kv_cache >= sizes.sequence_bytes(memory, load.length, block)
        own = weights[entry["weights_of"]] if "weights_of" in entry else max(weights)
        estimates = {
            "weights": own / GIB,
            "activation": memory.activation / GIB,
            "all but KV cache": (device * overheads.utilisation - memory.kv_cache - max(weights) + own) / GIB,
            "token": float(memory.token),
            "serves": float(fits),
        }
        published = {key: entry.get(key) for key in ("weights", "activation")}
        if "kv_cache" in entry:
            published["all but KV cache"] = entry["device_gib"] * overheads.utilisation - entry["kv_cache"]
        published.update(token=entry.get("token_bytes"), serves=entry.get("runs"))
        found += [
            Line(entry["name"], figure, float(value), estimates[figure], entry["source"])
            for figure, value in published.items()
            if value is not None
        ]
    return found


def page() -> str:
    """Return docs/reference/fit.md without its first line."""
    head = ["deployment", "per device", "published", "estimated", "error", "source"]
    rows = [[*cells(line), line.source] for line in lines()]
    limits = ", ".join(f"{name} {limit:.0%}" for name, limit in LIMITS.items())
    return f"""# Estimated and published device memory

What the planner estimates for deployments that others published, per device, with the overheads of the newest rows. A
test fails when an estimate is further off than this: {limits}.
The KV cache gets what the rest leaves, so the rest is what is compared. "Serves" is whether the publisher says it runs,
and whether the planner would let it. Engines on CPUs are measured instead: [benchmarks](../benchmarks.md).

{chr(10).join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])}
"""


def cells(line: Line) -> list[str]:
    if line.figure == "serves":
        words = [{1.0: "yes", 0.0: "no"}[value] for value in (line.published, line.estimated)]
        return [line.deployment, "serves", *words, "same" if not line.off else "DIFFERS"]
    unit = "B" if line.figure == "token" else "GiB"
    digits = 0 if unit == "B" else 2
    sized = [f"{value:.{digits}f} {unit}" for value in (line.published, line.estimated)]
    return [line.deployment, line.figure, *sized, f"{line.error:+.1%}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table with the sources")
    options = parser.parse_args()
    found = lines()
    if options.markdown:
        print(page(), end="")
    else:
        head = ["deployment", "per device", "published", "estimated", "error"]
        rows = [head, *map(cells, found)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 1 if any(line.off for line in found) else 0


if __name__ == "__main__":
    sys.exit(main())
