"""What the autopilot decided, for the page: the decisions as a table, and the held-out loss against temperature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langevin import plots
from langevin.ensembles.tuning import Tuning
from langevin.report.contents import Picture, Table
from langevin.report.theme import inline_svg


def tuning_tables(manifest: Mapping[str, Any]) -> list[Table]:
    """The decisions of a run by autopilot; none of a run whose settings were given."""
    rows = [[d.stage, f"{d.step:,}", d.decided, d.why] for d in Tuning.of_manifest(manifest)]
    caption = "What was chosen, at which step, and why; the same as print(run.tuning)."
    return [Table("Autopilot", caption, ["Stage", "Step", "Decided", "Why"], rows)] if rows else []


def tuning_pictures(manifest: Mapping[str, Any]) -> list[Picture]:
    """The loss of the held-out part at each temperature that was tried, if the temperature was chosen."""
    rungs = manifest.get("autopilot", {}).get("by_temperature", [])
    if not rungs:
        return []
    temperatures, losses, errors = ([rung[key] for rung in rungs] for key in ("temperature", "loss", "error"))
    chosen = manifest["autopilot"]["temperature"]
    shown = "; ".join(f"T = {t:g}: {loss:.4f}" for t, loss in zip(temperatures, losses, strict=True))
    alt = f"Negative log-likelihood of the held-out part against temperature. {shown}. Chosen: {chosen:g}."
    title = "Choice of the temperature"
    caption = (
        f"The negative log-likelihood of data held out, of all chains together; bars are the paired standard error of "
        f"the difference to the best. The largest T within one of them was chosen: {chosen:g}."
    )
    name = "all chains together"
    axes = plots.temperature_sweep(temperatures, {name: losses}, errors={name: errors})
    axes.set_ylabel("held-out cross-entropy (nats)")
    return [Picture(title, caption, alt, inline_svg(axes.figure, alt, "tuning"))]
