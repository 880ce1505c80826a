"""Virtual time, faults, checkers and exhaustive exploration around the real machines of `understudy.core`."""
