"""The machine: from a configuration to a trained adapter. Start reading at `trainer.run.run`."""

import os

# GNU OpenMP's threads, in torch and in llama.cpp, spin for milliseconds at the end of each small
# parallel region. Where another program wants the cores as well, that made a training pass three
# times slower (docs/performance.md). The variable is read once, when the library is loaded, so it
# is set before anything here can import torch; a value of the user's own stands.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
