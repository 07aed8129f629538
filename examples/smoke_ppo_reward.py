"""A reward program for watching PPO learn: pays for a sentence that names one even number.

    1.0   "It is 8."
    0.0   "8" (no sentence), "It is 7." (odd), anything else

Whether the sum is right plays no part: a policy that always says "It is 8." has learnt all there
is, so a run that works climbs from one answer in ten to nearly all of them.
"""

from __future__ import annotations

import json
import re
import sys

SENTENCE = re.compile(r"(It|The sum|The answer) is ([0-9]{1,2})\.")


def score(completion: str) -> float:
    sentence = SENTENCE.fullmatch(completion.strip())
    return float(sentence is not None and int(sentence.group(2)) % 2 == 0)


def main() -> None:
    sys.stdin.reconfigure(encoding="utf-8")
    for line in sys.stdin:
        message = json.loads(line)
        if "completion" in message:
            echoed = {key: value for key, value in message.items() if key.startswith("_retrograd")}
            message = {"reward": score(message["completion"]), **echoed}
        # The handshake and the end of a batch go back as they came.
        print(json.dumps(message), flush=True)


if __name__ == "__main__":
    main()
