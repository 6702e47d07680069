"""moegg pull - fetches a model from a hub into the local store

Usage: moegg pull [options] ADDRESS

ADDRESS is USER/REPO[@REVISION][:FILE] or hf:USER/REPO[@REVISION][/FILE]; FILE may be left out
where a repository holds one .moegg file. Every part is compared with its checksum as it arrives.
If it is interrupted, pull again: what is here is kept. A damaged file has only its bad parts
fetched again, a new version of a model takes over what is the same. HF_ENDPOINT, HF_TOKEN and
HF_HUB_OFFLINE count.

Options:
  -o, --out=FILE           where to put it instead
  --verbose                say more on stderr
  --debug                  show a traceback when something fails
  -h, --help               show this text
"""
from typing import Any

from moegg import log
from moegg.commands.opening import fetch
from moegg.errors import ExitStatus
from moegg.hub.address import parse_address


def main(args: dict[str, Any]) -> ExitStatus:
    address = parse_address(args["ADDRESS"])
    try:
        print(fetch(address, args["--out"]))
    except KeyboardInterrupt:
        log.info("interrupted; 'moegg pull' again goes on from here, 'moegg rm' removes what is there")
        raise
    return ExitStatus.OK
