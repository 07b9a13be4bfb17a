"""The checkpoints of an unfinished run: one file from a single process, or one part from each rank.

    checkpoint.safetensors   single process: the rows of a release, in the order of their numbers
    checkpoint-<release>.<rank>-of-<ranks>.safetensors   part of a rank: rows of its agents and their numbers

A rank removes its older parts only after all ranks have written their new parts. A run continues from the
newest release for which every rank can read the rows of its agents. So there is a complete checkpoint even if
a process is killed at any moment. Because parts contain the numbers of their rows, a run can continue with
another number of ranks, or in one process, if all parts are in one folder.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
from safetensors import SafetensorError, safe_open

from topdp.base.array_types import Ints
from topdp.base.files import UNREADABLE_FILE_ERRORS, atomic_path
from topdp.runs.row_arrays import as_array
from topdp.runs.run_folder import RunFolder, RunFolderError
from topdp.runs.tensor_files import read_tensor, write_tensors
from topdp.simulator.ranks.process_group import ProcessGroup
from topdp.simulator.row_layout import RowLayout
from topdp.simulator.simulation import State

SINGLE_CHECKPOINT = "checkpoint.safetensors"
PART_NAME = re.compile(r"checkpoint-(\d+)\.(\d+)-of-(\d+)\.safetensors")


class Checkpoint(NamedTuple):
    """The number of complete releases, and the rows of the last of them; bfloat16 as its bits."""

    releases: int
    rows: np.ndarray


class CheckpointPart(NamedTuple):
    """A file with some rows of the last of `releases` complete releases, and the `numbers` of these rows."""

    releases: int
    numbers: Ints
    file: Path


@final
class Checkpoints:
    """The checkpoints of the run in `path`, for the agents of `layout`; `group`: all ranks of the run."""

    def __init__(self, path: Path, layout: RowLayout, group: ProcessGroup | None = None) -> None:
        self.path, self.layout, self.group = path, layout, group

    def newest(self) -> Checkpoint | None:
        """Return this process's rows of the newest release from which all ranks can continue, or None."""
        parts = self._parts() if self.group is None else self.group.together(self._parts)
        own = sorted({part.releases for part in parts if self._has(parts, part.releases)}, reverse=True)
        by_rank = [own] if self.group is None else self.group.all(own)
        releases = max(set(by_rank[0]).intersection(*by_rank[1:]), default=0)
        self._expect_marked(releases, by_rank)
        return Checkpoint(releases, self._read(parts, releases)) if releases else None

    def save(self, folder: RunFolder | None, state: State) -> None:
        """Save the rows of the last release. All ranks call this method for the same release.

        `folder`: the run folder; None on all ranks except rank 0.
        """
        rows = as_array(state.rows)
        if self.group is None:
            RunFolder(self.path).save_checkpoint(state.releases, rows)
        else:
            self.group.together(lambda: self._write_part(state.releases, rows))
            if folder is not None:  # and all ranks have written their parts
                ranks = self.group.size
                folder.mark(folder.state, checkpoint={"releases": state.releases, "ranks": ranks})
        self.forget(but=state.releases)

    def forget(self, but: int | None = None) -> None:
        """Remove the checkpoints of the run, except the one after `but` releases by the present ranks."""
        for file in self.path.glob("checkpoint*.safetensors"):
            if part := PART_NAME.fullmatch(file.name):
                current = self.group is not None and (int(part[1]), int(part[3])) == (but, self.group.size)
            else:
                current = file.name != SINGLE_CHECKPOINT or (self.group is None and but is not None)
            if not current:
                file.unlink(missing_ok=True)  # several ranks may remove the same file

    def _write_part(self, releases: int, rows: np.ndarray) -> None:
        assert self.group is not None
        name = f"checkpoint-{releases}.{self.group.rank}-of-{self.group.size}.safetensors"
        self.path.mkdir(parents=True, exist_ok=True)  # missing on a machine that does not share the folder
        tensors = {
            "releases": np.array([releases]),
            "numbers": self.layout.made(releases - 1).astype(np.int64),
            "rows": rows,
        }
        with atomic_path(self.path / name) as beside:
            write_tensors(beside, tensors, None)

    def _parts(self) -> list[CheckpointPart]:
        """Return all files with rows. Ignore parts of ranks that cannot be read. Raise RunFolderError if the
        file of a single process cannot be read or is not of this plan.
        """
        parts, plan = [], self.layout.plan
        for file in sorted(self.path.glob("checkpoint*.safetensors")):
            if file.name == SINGLE_CHECKPOINT:
                releases, rows = RunFolder(self.path).checkpoint_size()
                if not 0 < releases <= plan.releases or rows != plan.exists[releases - 1].sum():
                    raise RunFolderError(
                        f"Expected a checkpoint of this plan in {file}, got {rows} rows after {releases} "
                        "releases."
                    )
                parts.append(CheckpointPart(releases, np.flatnonzero(plan.exists[releases - 1]), file))
            elif PART_NAME.fullmatch(file.name):
                with suppress(*UNREADABLE_FILE_ERRORS, SafetensorError), safe_open(file, "numpy") as opened:
                    numbers = opened.get_tensor("numbers")
                    if opened.get_slice("rows").get_shape()[0] == len(numbers):
                        parts.append(CheckpointPart(int(opened.get_tensor("releases")[0]), numbers, file))
        return [part for part in parts if 0 < part.releases <= plan.releases]

    def _has(self, parts: list[CheckpointPart], releases: int) -> bool:
        rows = [part.numbers for part in parts if part.releases == releases]
        return bool(np.isin(self.layout.made(releases - 1), np.concatenate(rows)).all())

    def _read(self, parts: list[CheckpointPart], releases: int) -> np.ndarray:
        wanted = self.layout.made(releases - 1)
        rows: np.ndarray | None = None
        for part in parts:
            here = np.flatnonzero(np.isin(part.numbers, wanted))
            if part.releases != releases or not len(here):
                continue
            values = read_tensor(part.file, "rows")
            if np.array_equal(part.numbers, wanted):
                return np.asarray(values)
            if rows is None:
                rows = np.empty((len(wanted), values.shape[1]), values.dtype)
            if values.dtype != rows.dtype:  # bits of bfloat16 cannot be mixed with numbers of float32
                raise RunFolderError(
                    f"Expected parts of one run in {self.path}, got rows of {rows.dtype} and {values.dtype}. "
                    "Remove the parts of the other run."
                )
            rows[np.searchsorted(wanted, part.numbers[here])] = values[here]
        assert rows is not None
        return rows

    def _expect_marked(self, newest: int, by_rank: list[list[int]]) -> None:
        """Raise RunFolderError if all ranks had a newer checkpoint according to run.json.

        `newest`: the number of releases of the newest checkpoint that is complete now. `by_rank`: for each
        rank, the numbers of releases for which it can read its rows.
        """
        file, marked = self.path / "run.json", 0
        if file.exists() and (self.group is None or self.group.leads):
            marked = (RunFolder(self.path).read_json("run.json").get("checkpoint") or {}).get("releases", 0)
        marked = marked if self.group is None else self.group.led(marked)
        if newest < marked:
            without = [rank for rank, releases in enumerate(by_rank) if max(releases, default=0) < marked]
            raise RunFolderError(
                f"Expected the checkpoint after {marked} releases in {self.path}, which all ranks had "
                f"according to run.json; ranks {without} do not find or cannot read the rows of their "
                "agents. Restore the missing parts, or start with the former ranks and folders."
            )
