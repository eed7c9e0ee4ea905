"""Ends what a comparison has started. `run.sh` of each comparison puts this directory on Python's path."""

import signal
import subprocess


def stop(processes):
    """Asks processes to end, and kills those that have not ended after ten seconds."""
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
