"""Jobs that do what a parser of hostile data can be made to do."""

import os
import signal
import time


def add(a, b):
    return a + b


def process():
    return os.getpid()


def spin():
    while True:
        pass


def wait():
    time.sleep(600)


def fill():
    return len(bytearray(4 << 30))


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def abort():  # as Rust and C++ do when an allocation fails
    os.abort()


def large():
    return "x" * (2 << 20)


def fail(kind):
    raise {"OSError": FileNotFoundError, "ValueError": ValueError, "RecursionError": RecursionError}[kind](
        "why"
    )


def environment():
    return sorted(os.environ)


def chatter():
    print("noise", flush=True)
    os.write(1, b"noise")
    return "\ud800 ok"


def grow():
    """Holds much memory once, below its limit."""
    return len(bytearray(600 << 20))
