"""How the peers in PyTorch time what a GPU does: recorded once, replayed often enough that the ends do not count."""
import math
import time

import torch


def recorded(run, cpu):
    """`run` as one graph, and the result that it leaves behind."""
    if cpu:
        return run, run()
    # What happens at the first calls only; beside the default stream, which must not be in the gradients' graph.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result


def times(run, samples, cpu, least_us=2e4):
    """Microseconds of one run: means of runs in a row, `least_us` or more in all."""

    def mean(count):
        start = time.perf_counter()
        for _ in range(count):
            run()
        if not cpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e6 / count

    mean(2)
    count = math.ceil(max(1, least_us / mean(1)))
    return [mean(count) for _ in range(samples)]
