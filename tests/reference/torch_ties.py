"""Which of equal scores torch.topk keeps on a CPU: those that libstdc++'s nth_element (an introselect) leaves in front.

Scores of sparse attention are sums of relu and often exactly 0, so that recorded results depend on it. moegg keeps the lowest index.
"""


def best(scores, k):
    """The k largest, as torch.topk for few scores: median of three, unguarded partition, insertion sort of the last three."""
    a = [(float(v), i) for i, v in enumerate(scores)]
    first, last, nth = 0, len(a), k - 1

    def above(i, j):
        return a[i][0] > a[j][0]
    while k and last - first > 3:
        x, y, z = first + 1, first + (last - first) // 2, last - 1
        if above(x, y):
            median = y if above(y, z) else z if above(x, z) else x
        else:
            median = x if above(x, z) else z if above(y, z) else y
        a[first], a[median] = a[median], a[first]
        low, high = first + 1, last
        while True:
            while above(low, first):
                low += 1
            high -= 1
            while above(first, high):
                high -= 1
            if low >= high:
                break
            a[low], a[high] = a[high], a[low]
            low += 1
        first, last = (low, last) if low <= nth else (first, low)
    a[first:last] = sorted(a[first:last], key=lambda x: -x[0])       # stable, as an insertion sort
    return [i for _, i in a[:k]]
