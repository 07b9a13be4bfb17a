"""Tests of an agent's start: what agents import before they are forked, and how long each stage takes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from topdp.agents.development import child_processes
from topdp.agents.runtime.agent_timing import StartTiming


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="agents are forked on Linux only")
def test_forked_processes_start_without_grpc_threads_and_modules_that_agents_do_not_need():
    text = f"""
import os, sys
for name in {child_processes.PRELOADED_MODULES!r}:
    __import__(name)
slow = ("grpc", "networkx", "requests", "matplotlib", "topdp.audit.audit_run")
print([name for name in slow if name in sys.modules], len(os.listdir("/proc/self/task")))
"""
    environment = {**os.environ, **child_processes.SINGLE_THREAD_VARIABLES}
    found = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True)
    assert found.stdout.split("\n")[0] == "[] 1", found.stdout + found.stderr


def test_the_stages_of_a_start_begin_with_the_birth_of_the_process():
    stages = StartTiming()
    stages.end_stage("imports")
    stages.end_stage("plan")
    assert stages.seconds["imports"] > stages.seconds["plan"] >= 0
    assert stages.describe().endswith(f"plan {stages.seconds['plan']:.2f})")
