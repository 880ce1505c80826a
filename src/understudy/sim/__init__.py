"""One simulated world, its faults and its checkers, around the real machines of `understudy.core`."""
