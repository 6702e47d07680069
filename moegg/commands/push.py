"""moegg push - puts a model into a repository of a hub, with a model card

Usage: moegg push [options] MODEL ADDRESS

ADDRESS is USER/REPO[@BRANCH][:FILE]; FILE is by default the name of MODEL. Verifies the whole
file first and asks before it uploads. A repository that does not exist is made. The model card
says what the file says of itself: origin, size, recipe, measured quality (moegg edit --quality);
a card that was not written by moegg is left alone. HF_ENDPOINT and HF_TOKEN count.

Options:
  --private                a repository that is made is private
  -y, --yes                do not ask
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
import sys
from typing import Any

from moegg import log
from moegg.commands.asking import confirm
from moegg.commands.opening import open_container
from moegg.commands.progress import bar
from moegg.errors import ExitStatus
from moegg.hub.address import parse_address
from moegg.units import fmt_bytes


def main(args: dict[str, Any]) -> ExitStatus:
    from moegg.hub import push, remote  # here: huggingface_hub takes 0.2 s to import
    container, address = open_container(args["MODEL"]), parse_address(args["ADDRESS"])
    address = address if address.file else address.of(push.default_file(container.path))
    remote.require_token(address)
    if container.file_bytes > push.ADVISED_BYTES:
        log.warn(f"{container.path}: is {fmt_bytes(container.file_bytes)}; hubs recommend files below {fmt_bytes(push.ADVISED_BYTES)}")
    made = "private" if args["--private"] else "public"
    confirm(f"upload {container.path} ({fmt_bytes(container.file_bytes)}) to {address}? A repository that does not exist becomes {made}.",
            args["--yes"])
    with bar("verify") as progress:
        container.verify(progress)
    if not sys.stderr.isatty():
        push.quiet()
    done = push.push(container, address, args["--private"])
    if not done.card:
        log.info(f"{address}: the model card of the repository is its own and was left alone")
    print(done.url)
    return ExitStatus.OK
