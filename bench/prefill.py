"""Prefill speed of models at several prompt lengths and context depths: one JSON line per repetition.

    python bench/prefill.py MODEL... [--prompts 256,1024] [--depths 0] [--runs N] [--threads N]
"""
from common import bench, emit, numbers, parser


def main() -> None:
    p = parser(__doc__)
    p.add_argument("models", nargs="+", metavar="MODEL")
    p.add_argument("--prompts", type=numbers, default=[256, 1024], help="tokens of the prompt (default: 256,1024)")
    p.add_argument("--depths", type=numbers, default=[0], help="tokens in the context before (default: 0)")
    p.add_argument("--runs", type=int, default=5)
    p.add_argument("--threads", type=int)
    a = p.parse_args()
    threads = [f"--threads={a.threads}"] if a.threads else []
    for model in a.models:
        for depth in a.depths:
            for n in a.prompts:
                emit("prefill", bench(model, f"--prompt={n}", "--gen=0", "--warm=0", f"--ctx-depth={depth}", f"--runs={a.runs}", *threads))


if __name__ == "__main__":
    main()
