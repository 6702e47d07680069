"""Decode speed of models at several context depths: one JSON line per repetition.

    python bench/decode.py MODEL... [--depths 0,4096] [--gen N] [--runs N] [--threads N]
"""
from common import bench, emit, numbers, parser


def main() -> None:
    p = parser(__doc__)
    p.add_argument("models", nargs="+", metavar="MODEL")
    p.add_argument("--depths", type=numbers, default=[0], help="tokens in the context before (default: 0)")
    p.add_argument("--gen", type=int, default=64)
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--threads", type=int)
    a = p.parse_args()
    threads = [f"--threads={a.threads}"] if a.threads else []
    for model in a.models:
        for depth in a.depths:
            emit("decode", bench(model, "--prompt=0", f"--gen={a.gen}", f"--ctx-depth={depth}", f"--runs={a.runs}", *threads))


if __name__ == "__main__":
    main()
