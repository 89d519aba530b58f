"""A hostile agent: what it does to git, to our programs and to the host, in real processes, and that no harm comes.

`Lab.run` is a command in the sandbox (none of its processes is alive afterwards), `Lab.tool` a tool call, and every
test ends with `Lab.check`: nothing outside changed, the worktree can be worked in.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support.agent_lab import SMALL, Lab, in_namespace, need_sandbox, python
from support.mini_repo import head_tree, new_file, raw_git

from specpilot_cli.agents.shell import Runner
from specpilot_cli.worktrees import checkout, patch
from specpilot_cli.worktrees.git import diff_bytes, has_tree, head_commit

pytestmark = pytest.mark.timeout(60)


# --- git


def test_rewrites_history(lab: Lab) -> None:
    ran = lab.run(
        "git log; git commit --amend -m x; git update-ref refs/heads/stock HEAD~1; git gc; rm -rf .git; ls -a"
    )
    assert "Stock" not in ran.stdout and ".git" in ran.stdout
    for path in (".git", ".git/config", "engine/.git/config", ".gitattributes", ".gitmodules", ".GIT/config"):
        lab.refused("write_file", path=path, content="x")
        lab.refused("read_file", path=path)
    for name in (".git/config", ".gitattributes", ".gitmodules"):
        lab.refused("apply_patch", patch=new_file(name).decode())


def hostile_repository(git: Path, canary: Path) -> None:
    """Everything in a repository that makes git run a program."""
    touch = f"touch {canary}"
    hooks = git / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-checkout", "post-index-change", "pre-commit", "fsmonitor-watchman", "reference-transaction"):
        (hooks / name).write_text(f"#!/bin/sh\n{touch}\n")
        (hooks / name).chmod(0o755)
    with open(git / "config", "a") as file:
        file.write(
            f"[core]\n\tfsmonitor = {touch}\n\thooksPath = {hooks}\n\tsshCommand = {touch}\n\tpager = {touch}\n"
            f"\teditor = {touch}\n\tattributesFile = {git}/attributes\n\talternateRefsCommand = {touch}\n"
            f'[filter "evil"]\n\tclean = {touch}\n\tsmudge = {touch}\n\tprocess = {touch}\n\trequired = true\n'
            f'[diff]\n\texternal = {touch}\n[diff "evil"]\n\tcommand = {touch}\n\ttextconv = {touch}\n'
            f'[merge "evil"]\n\tdriver = {touch}\n[credential]\n\thelper = !{touch}\n[gpg]\n\tprogram = {touch}\n'
            f'[commit]\n\tgpgSign = true\n[remote "o"]\n\turl = ext::{touch}\n\tpromisor = true\n'
            f"[extensions]\n\tpartialClone = o\n[alias]\n\tupdate-index = !{touch}\n\tls-files = !{touch}\n"
        )
    (git / "attributes").write_text("* filter=evil diff=evil merge=evil\n")


def test_patches_git_settings_and_hooks(lab: Lab) -> None:
    ran = lab.run("mkdir -p .git/hooks; echo '[core]' >> .git/config; printf x > .git; git config core.fsmonitor touch")
    assert ran.rc != 0
    assert (lab.path / ".git").read_bytes() == lab.before["gitfile"]


def test_git_settings_of_an_agent_run_nothing(tmp_path: Path) -> None:
    """As if there were no sandbox and `.git` were the agent's: what we ask git then still runs no program."""
    need_sandbox()
    lab, ran = Lab(tmp_path), tmp_path / "ran"
    tree = lab.worktree.tree()
    (lab.path / ".git").unlink()
    raw_git(lab.path, "init", "--quiet")
    raw_git(lab.path, "commit", "--quiet", "--allow-empty", "-m", "mine")
    hostile_repository(lab.path / ".git", ran)
    (lab.path / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    (lab.path / "engine/model.py").write_text("changed = 1\n")
    with suppress(Exception):
        changed = lab.worktree.tree()
        diff_bytes(lab.path, tree, changed)
        patch.apply(lab.path, changed, new_file("a.py"))
    with suppress(Exception):
        lab.tool("apply_patch", patch=new_file("b.py").decode())
    assert not has_tree(lab.path, "1" * 40)  # a promisor remote would be asked for it
    assert not ran.exists()
    checkout.fill(lab.stock, head_commit(lab.stock), lab.path)
    assert not ran.exists() and lab.worktree.tree() == tree


def test_attributes_and_filters_in_the_tree(lab: Lab) -> None:
    """`.gitattributes` in the worktree, and even the filter's program in the shared repository's settings."""
    ran = lab.folder / "ran"
    with open(lab.stock / ".git" / "config", "a") as file:
        file.write(f'[filter "evil"]\n\tclean = touch {ran}; cat\n\tsmudge = touch {ran}; cat\n\trequired = true\n')
    attributes = "* filter=evil text eol=crlf ident working-tree-encoding=UTF-16"
    lab.run(f"echo '{attributes}' > .gitattributes; echo '$Id$' > a.py")
    tree = lab.worktree.tree()
    assert raw_git(lab.stock, "cat-file", "blob", f"{tree}:a.py") == "$Id$"
    lab.worktree.restore(tree)
    assert (lab.path / "a.py").read_text() == "$Id$\n" and not ran.exists()
    with pytest.raises(patch.PatchUnsafe):
        patch.apply(lab.stock, head_tree(lab.stock), diff_bytes(lab.stock, head_tree(lab.stock), tree))
    (lab.stock / ".git" / "config").write_bytes(lab.before["config"])


def test_hides_a_repository_in_the_tree(lab: Lab) -> None:
    lab.run("mkdir sub; cd sub; git init -q; echo x > a.py; git add a.py; git config core.fsmonitor 'touch ../ran'")
    outcome = lab.tool("submit")
    assert outcome.is_error and "repository of its own" in outcome.text and not lab.gate.asked
    assert not (lab.path / "ran").exists()
    lab.run("rm -rf sub")


# --- code that others would run


def test_plants_code_for_the_trusted_side(lab: Lab) -> None:
    ran = lab.path / "ran"
    code = f"open({str(ran)!r}, 'a').write('x')"
    modules = (
        "sitecustomize.py usercustomize.py conftest.py json.py os.py resource.py specpilot_cli.py x.pth pytest.ini"
    )
    others = "engine/sitecustomize.py ~/.pythonrc ~/.bashrc ~/.profile"
    programs = "grep git sh find python"
    lab.run(
        f"for f in {modules} {others}; do echo {shlex.quote(code)} > $f; done\n"
        "site=~/.local/lib/python3.11/site-packages; mkdir -p $site; cp sitecustomize.py $site\n"
        f"printf '#!/bin/sh\\ntouch {ran}\\n' | tee {programs} > /dev/null; chmod +x {programs}"
    )
    assert (lab.path / "conftest.py").exists() and os.access(lab.path / "grep", os.X_OK)
    assert lab.tool("run_command", command="true").text.startswith("exit code 0")
    for name, arguments in (
        ("list_files", {}),
        ("read_file", {"path": "conftest.py"}),
        ("search", {"pattern": "write"}),
        ("edit_file", {"path": "conftest.py", "old": "'a'", "new": "'w'"}),
        ("apply_patch", {"patch": new_file("c.py").decode()}),
        ("measure", {}),
        ("list_kernels", {}),
    ):
        assert not lab.tool(name, **arguments).is_error, name
    lab.worktree.restore(lab.worktree.tree())
    assert not ran.exists()
    assert not list(Path.home().rglob("*customize*")) and not (Path.home() / ".pythonrc").exists()


def test_alters_caches_that_both_arms_share(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"XDG_CACHE_HOME": "xdg", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    for name, folder in places.items():
        (lab.outside / folder).mkdir()
        monkeypatch.setenv(name, str(lab.outside / folder))
    lab.before = lab._outside_state()
    marked = "specpilot-hostile-marker"
    own = "~ ~/.cache ~/.triton /tmp /var/tmp /dev/shm /run"
    shared = f"{Path.home()}/.cache {lab.outside}/xdg {lab.outside}/triton $XDG_CACHE_HOME $TRITON_CACHE_DIR"
    lab.run(f"for d in {own} {shared}; do mkdir -p $d && echo x > $d/{marked}; done")
    for folder in (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"), Path.home(), Path.home() / ".cache"):
        assert not (folder / marked).exists()
    again = lab.run(f"ls ~/{marked} ~/.cache/{marked} /tmp/{marked} /dev/shm/{marked}")
    assert again.stdout == ""  # nor does the next command see them


# --- the network


def test_opens_sockets(lab: Lab) -> None:
    abstract = f"\0specpilot-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        local.bind(abstract)
        local.listen()
        tcp.settimeout(0.2)
        local.settimeout(0.2)
        text = f"""
import socket
def attempt(family, kind, address):
    try:
        s = socket.socket(family, kind); s.settimeout(1); s.connect(address); print('CONNECTED', address)
    except OSError as error:
        print(type(error).__name__)
attempt(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', {tcp.getsockname()[1]}))
attempt(socket.AF_UNIX, socket.SOCK_STREAM, {abstract!r})
attempt(socket.AF_INET, socket.SOCK_STREAM, ('192.0.2.1', 80))
attempt(socket.AF_INET, socket.SOCK_DGRAM, ('192.0.2.53', 53))
attempt(socket.AF_UNIX, socket.SOCK_STREAM, '/var/run/docker.sock')
attempt(40, socket.SOCK_STREAM, (2, 1))
attempt(socket.AF_PACKET, socket.SOCK_RAW, ('lo', 0))
try: print('RESOLVED', socket.getaddrinfo('example.com', 80))
except OSError as error: print('no name')
"""
        ran = lab.run(python(text))
        for server in (tcp, local):
            with pytest.raises(TimeoutError):
                server.accept()
    assert "CONNECTED" not in ran.stdout and "RESOLVED" not in ran.stdout and ran.stdout.count("\n") == 8


# --- processes


def test_leaves_daemons(lab: Lab) -> None:
    began = time.monotonic()
    twice = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(600)\n  os._exit(0)"
    ran = lab.run(
        "nohup sleep 600 & (setsid sleep 600 &)\n"
        "setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' &\n"
        f"{python(twice)}\necho done"
    )
    assert ran.ended_by == "exit" and "done" in ran.stdout and time.monotonic() - began < 6


def test_kills_and_traces_its_parents(lab: Lab) -> None:
    for command in ("kill -9 $PPID", "kill -9 1", "kill -9 -1", f"kill -9 {os.getpid()} {os.getppid()}"):
        assert lab.run(f"({command}); sleep 0.1").seconds < 4
    text = "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\n"
    text += f"print([l.ptrace(16, pid, 0, 0) for pid in (1, 2, {os.getpid()})])"
    assert lab.run(python(text)).stdout == "[-1, -1, -1]\n"
    assert lab.run("echo $PPID; cat /proc/1/status | grep -c Tracer").rc == 0


def test_outlives_a_round_that_is_killed(lab: Lab) -> None:
    program = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from pathlib import Path
from specpilot_cli.agents.shell import Runner
command = "readlink /proc/self/ns/pid > ns; trap '' TERM; sleep 600 & sleep 600"
Runner().run(Path({str(lab.path)!r}), command)
"""
    with subprocess.Popen([sys.executable, "-c", program]) as orchestrator:
        namespace = lab.path / "ns"
        limit = time.monotonic() + 20
        while not (namespace.exists() and namespace.read_text()) and time.monotonic() < limit:
            time.sleep(0.05)
        orchestrator.send_signal(signal.SIGKILL)
    limit = time.monotonic() + 5
    while in_namespace(namespace.read_text().strip()) and time.monotonic() < limit:
        time.sleep(0.05)
    assert in_namespace(namespace.read_text().strip()) == []


def test_stops_when_a_person_stops_the_round(lab: Lab) -> None:
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    ran = Runner(SMALL, stop=stop).run(lab.path, "trap '' TERM INT; sleep 100")
    assert ran.ended_by == "stop" and ran.seconds < 3


# --- the kernel's doors


def test_makes_devices_and_privileged_files(lab: Lab) -> None:
    ran = lab.run("mknod disk b 254 0; mknod mem c 1 1; cat /dev/mem /dev/sda /dev/vda /dev/kmsg; ls /dev")
    assert not {"mem", "kmsg", "sda", "vda", "kvm", "fuse"} & set(ran.stdout.split())
    lab.run("cp /bin/sh own; chmod 6755 own; mkdir sticky; chmod 7777 sticky; chmod 2777 .")
    assert (lab.path / "own").stat().st_mode & 0o7000 == 0
    assert (lab.path / "sticky").stat().st_mode & 0o7000 == 0 and lab.path.stat().st_mode & 0o7000 == 0
    assert lab.run("su -c id; sudo id; ls -l /usr/bin/passwd; ./own -c 'id -u'").stdout.split()[-1] == "1000"
    lab.run("rm -rf own sticky")


def test_pretends_that_the_sandbox_failed(lab: Lab) -> None:
    outcome = lab.tool("run_command", command="cp /bin/sh own; chmod 4755 own; echo 'bwrap: a lie' >&2; exit 1")
    assert outcome.is_error and "did not start" in outcome.text
    assert (lab.path / "own").stat().st_mode & 0o7000 == 0
    lab.run("rm own")


def test_mounts_and_makes_namespaces(lab: Lab) -> None:
    hidden = lab.run("mount | wc -l; umount .git; umount /tmp; mount -t tmpfs x /mnt; mount --bind / /tmp; cat .git")
    assert hidden.rc != 0
    text = "import ctypes\nl = ctypes.CDLL(None, use_errno=True)\n"
    text += "print([l.unshare(flag) for flag in (0x10000000, 0x20000, 0x20000000)])\n"
    text += "print(l.mount(b'x', b'/tmp', b'tmpfs', 0, None), l.umount2(b'/proc', 2), l.chroot(b'/tmp'))"
    assert lab.run(python(text)).stdout == "[-1, -1, -1]\n-1 -1 -1\n"
    rights = lab.run("grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status").stdout.split()
    assert rights[1::2] == ["0" * 16] * 5 + ["1", "2"]  # none, none by a program's bits either, filtered
    assert lab.run("unshare -Ur id -u; unshare -m true; nsenter -t 1 -m true").stdout.strip() == ""
    clone = "import ctypes, os\nl = ctypes.CDLL(None)\n"
    clone += "n = {'x86_64': 56, 'aarch64': 220}[os.uname().machine]\nprint(l.syscall(n, 0x10000000 | 17, 0, 0, 0, 0))"
    assert lab.run(python(clone)).stdout == "-1\n"  # clone with a user namespace


def test_writes_to_the_kernel(lab: Lab) -> None:
    """Only values that are there already are written: where the sandbox fails, this test must not do the harm."""
    settings = " ".join(f"/proc/sys/{name}" for name in ("kernel/core_pattern", "kernel/printk", "vm/swappiness"))
    ran = lab.run(
        f'for f in {settings}; do test -r $f && echo READ; v=$(cat $f); echo "$v" > $f && echo WROTE $f; done\n'
        "for f in /proc/sys/vm/drop_caches /proc/sysrq-trigger /proc/fs /sys /sys/fs/cgroup; do\n"
        "  test -w $f && echo WROTE $f; done\n"
        "echo -17 > /proc/self/oom_score_adj && echo WROTE; renice -n -5 $$ && echo WROTE"
    )
    assert ran.stdout == "READ\n" * 3
    opened = """
import os
for folder, folders, files in os.walk('/proc'):
    folders[:] = [name for name in folders if not name.isdigit() and name not in ('self', 'thread-self')]
    for name in files:
        for flags in (os.O_WRONLY, os.O_RDONLY if name in ('kcore', 'kmsg', 'keys', 'slabinfo') else os.O_WRONLY):
            try: os.close(os.open(f'{folder}/{name}', flags | os.O_NONBLOCK)); print(folder, name)
            except OSError: pass
print('looked at', folder)
"""
    assert lab.run(python(opened)).stdout.startswith("looked at /proc/")
