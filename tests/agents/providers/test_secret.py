"""A secret shows itself nowhere, and leaves the environment when it is taken."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from specpilot_cli.agents.providers.secret import HIDDEN, Secret, take_key

KEY = "sk-ant-0123456789abcdef"


def test_no_form_of_a_secret_shows_it() -> None:
    @dataclass
    class Holder:
        key: Secret

    secret = Secret(KEY)
    forms = [repr(secret), str(secret), f"{secret}", f"{secret:>40}", "%s %r" % (secret, secret), repr(Holder(secret))]  # noqa: UP031
    assert all(KEY not in form and HIDDEN in form for form in forms)
    assert not hasattr(secret, "__dict__")
    assert secret.reveal() == KEY


def test_a_secret_is_not_written() -> None:
    secret = Secret(KEY)
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy, json.dumps):
        with pytest.raises(TypeError) as caught:
            attempt(secret)
        assert KEY not in str(caught.value)
    with pytest.raises(TypeError):
        secret.__getstate__()


def test_scrubbing() -> None:
    assert Secret(KEY).scrub(f"a {KEY} b {KEY}") == f"a {HIDDEN} b {HIDDEN}"
    odd = 'key-with-"quotes"-\\-and-more'
    assert Secret(odd).scrub(json.dumps({"said": odd})) == json.dumps({"said": HIDDEN})
    assert Secret("test").scrub("a test") == "a test"
    assert Secret().scrub("nothing") == "nothing"


def test_taking_the_key_removes_both() -> None:
    environ = {"ANTHROPIC_API_KEY": f" {KEY}\n", "ANTHROPIC_AUTH_TOKEN": "token-0123456789", "HOME": "x"}
    taken = take_key(environ)
    assert (taken.reveal(), taken.kind, environ) == (KEY, "api_key", {"HOME": "x"})
    assert not take_key(environ)


def test_a_token_where_there_is_no_key() -> None:
    taken = take_key({"ANTHROPIC_API_KEY": "", "ANTHROPIC_AUTH_TOKEN": "token-0123456789"})
    assert (taken.reveal(), taken.kind) == ("token-0123456789", "auth_token")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_key_is_gone_from_proc_and_from_children() -> None:
    code = (
        "import os, subprocess, sys; from pathlib import Path\n"
        "from specpilot_cli.agents.providers.secret import take_key\n"
        "before = Path('/proc/self/environ').read_bytes()\n"
        "key = take_key(os.environ)\n"
        "child = subprocess.run(['env'], capture_output=True).stdout\n"
        "after = Path('/proc/self/environ').read_bytes()\n"
        "kept = b'OTHER=stays' in after and b'OTHER=stays' in child\n"
        "print([key.reveal().encode() in where for where in (before, after, child)], kept)\n"
    )
    env = {**os.environ, "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_AUTH_TOKEN": KEY, "OTHER": "stays"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "[True, False, False] True"


def test_nothing_of_a_secret_is_in_a_file_of_this_package() -> None:
    """`reveal` is called where the SDK's client is made and where the courier gets it through its pipe."""
    package = Path(sys.modules[Secret.__module__].__file__ or "").parents[1]
    users = {p.name for p in package.rglob("*.py") if ".reveal()" in p.read_text()}
    assert users == {"anthropic.py", "detached.py"}
