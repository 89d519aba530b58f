"""A seccomp filter for commands of agents: it takes away system calls that builds, tests and scripts do without.

Namespaces and missing capabilities refuse most of these already. The filter takes the kernel's code behind them out of
reach, and closes what namespaces leave open: the keyring of our session, sockets that know no network namespace
(AF_VSOCK), and memory that no limit counts (memfd, System V segments).

The program is classic BPF over `struct seccomp_data` (linux/seccomp.h, linux/filter.h); numbers are from the kernel's
`unistd_64.h` (x86_64) and `asm-generic/unistd.h` (aarch64).
"""

from __future__ import annotations

import errno
import os
import platform
import struct

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_X32 = 0x40000000
_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: those that a network namespace confines."""

_REFUSED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
_UNKNOWN: dict[str, tuple[int | None, int | None]] = {
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "msgget": (68, 186),
    "semget": (64, 190),
    "shmget": (29, 194),
}
"""Answered as if the kernel had none (ENOSYS): programs that can do without them then do."""

_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("=HBBI", code, then, otherwise, value)


def _refuse(error: int) -> bytes:
    return _step(_RETURN, _ERROR | error)


def program(machine: str | None = None) -> bytes:
    """The filter for a machine (`platform.machine()`); empty where its system call numbers are not known here."""
    machine = machine or platform.machine()
    if machine not in _ARCH:
        return b""
    column = list(_ARCH).index(machine)
    steps = [_step(_LOAD, _ARCH_AT), _step(_EQUAL, _ARCH[machine], then=1), _refuse(errno.EPERM)]
    steps += [_step(_LOAD, _NUMBER_AT)]
    if machine == "x86_64":  # the x32 table would be a second way to every call
        steps += [_step(_AT_LEAST, _X32, otherwise=1), _refuse(errno.EPERM)]
    for calls, error in ((_REFUSED, errno.EPERM), (_UNKNOWN, errno.ENOSYS)):
        for numbers in calls.values():
            if (number := numbers[column]) is not None:
                steps += [_step(_EQUAL, number, otherwise=1), _refuse(error)]
    steps += [_step(_EQUAL, _SOCKET[machine], otherwise=len(_FAMILIES) + 2), _step(_LOAD, _FIRST_ARGUMENT_AT)]
    steps += [_step(_EQUAL, family, then=len(_FAMILIES) - i) for i, family in enumerate(_FAMILIES)]
    steps += [_refuse(errno.EAFNOSUPPORT), _step(_RETURN, _ALLOW)]
    return b"".join(steps)


def open_program() -> int | None:
    """A file descriptor from which the filter can be read once; None where there is none for this machine."""
    text = program()
    if not text:
        return None
    reading, writing = os.pipe()
    try:
        os.write(writing, text)  # about 1 KiB: far below what a pipe takes without a reader
    finally:
        os.close(writing)
    return reading
