"""seccomp: system calls that a program which only computes has no use for fail with EPERM.

A second wall behind namespaces and Landlock, and the one that forbids processes and UDP where there are no namespaces.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from env_server.sandbox import kernel

_MODE_FILTER = 2
_LOAD_WORD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL_PROCESS, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
_CLONE_THREAD = 0x00010000
_X32 = 0x40000000

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_SAME_EVERYWHERE = {
    "clone3": 435,
    "fchmodat2": 452,
    "fsconfig": 431,
    "fsmount": 432,
    "fsopen": 430,
    "fspick": 433,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "io_uring_setup": 425,
    "memfd_secret": 447,
    "mount_setattr": 442,
    "move_mount": 429,
    "open_tree": 428,
    "pidfd_getfd": 438,
    "pidfd_open": 434,
    "pidfd_send_signal": 424,
}
# fmt: off
_X86_64 = {
    "add_key": 248, "bpf": 321, "chmod": 90, "chown": 92, "chroot": 161, "clone": 56, "execve": 59, "execveat": 322,
    "fanotify_init": 300, "fchmod": 91, "fchmodat": 268, "fchown": 93, "fchownat": 260, "fork": 57,
    "fremovexattr": 199, "fsetxattr": 190, "futimesat": 261, "ioprio_set": 251, "kcmp": 312, "keyctl": 250, "kill": 62,
    "lchown": 94, "lremovexattr": 198, "lsetxattr": 189, "memfd_create": 319, "mount": 165, "mq_open": 240,
    "msgget": 68, "name_to_handle_at": 303, "open_by_handle_at": 304, "perf_event_open": 298, "personality": 135,
    "pivot_root": 155, "prctl": 157, "prlimit64": 302, "process_vm_readv": 310, "process_vm_writev": 311,
    "ptrace": 101, "removexattr": 197, "request_key": 249, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297,
    "sched_setaffinity": 203, "sched_setscheduler": 144, "semget": 64, "setns": 308, "setpgid": 109,
    "setpriority": 141, "setsid": 112, "setxattr": 188, "shmat": 30, "shmget": 29, "socket": 41, "tgkill": 234,
    "tkill": 200, "truncate": 76, "umount2": 166, "unshare": 272, "userfaultfd": 323, "utime": 132, "utimensat": 280,
    "utimes": 235, "vfork": 58,
}
_AARCH64 = {
    "add_key": 217, "bpf": 280, "chroot": 51, "clone": 220, "execve": 221, "execveat": 281, "fanotify_init": 262,
    "fchmod": 52, "fchmodat": 53, "fchown": 55, "fchownat": 54, "fremovexattr": 16, "fsetxattr": 7, "ioprio_set": 30,
    "kcmp": 272, "keyctl": 219, "kill": 129, "lremovexattr": 15, "lsetxattr": 6, "memfd_create": 279, "mount": 40,
    "mq_open": 180, "msgget": 186, "name_to_handle_at": 264, "open_by_handle_at": 265, "perf_event_open": 241,
    "personality": 92, "pivot_root": 41, "prctl": 167, "prlimit64": 261, "process_vm_readv": 270,
    "process_vm_writev": 271, "ptrace": 117, "removexattr": 14, "request_key": 218, "rt_sigqueueinfo": 138,
    "rt_tgsigqueueinfo": 240, "sched_setaffinity": 122, "sched_setscheduler": 119, "semget": 190, "setns": 268,
    "setpgid": 154, "setpriority": 140, "setsid": 157, "setxattr": 5, "shmat": 196, "shmget": 194, "socket": 198,
    "tgkill": 131, "tkill": 130, "truncate": 45, "umount2": 39, "unshare": 97, "userfaultfd": 282, "utimensat": 88,
}
# fmt: on
_NUMBERS = {"x86_64": {**_SAME_EVERYWHERE, **_X86_64}, "aarch64": {**_SAME_EVERYWHERE, **_AARCH64}}
_CONDITIONAL = ("clone", "clone3", "kill", "tkill", "tgkill", "prctl", "prlimit64")


def forbid_calls() -> None:
    """Filter this process's calls from now on; OSError where seccomp is absent or the machine's calls are unknown.

    Needs PR_SET_NO_NEW_PRIVS. Threads stay possible, and signals to oneself.
    """
    machine = os.uname().machine
    if machine not in _ARCH:
        raise OSError(f"the system calls of {machine} are not known here")
    program = _program(machine, os.getpid())
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: the number of instructions, padding, a pointer to them
    description = struct.pack("@HP", len(program) // 8, ctypes.addressof(code))
    kernel.prctl("prctl(PR_SET_SECCOMP)", kernel.PR_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(description))


def _program(machine: str, pid: int) -> bytes:
    numbers = _NUMBERS[machine]
    refuse = _return(_FAIL | errno.EPERM)
    allow = _return(_ALLOW)
    argument = _instruction(_LOAD_WORD, _FIRST_ARGUMENT_AT)
    to_oneself = argument + _instruction(_JUMP_EQUAL, pid, 0, 1) + allow + refuse
    blocks = {
        "clone": argument + _instruction(_JUMP_ANY_BIT, _CLONE_THREAD, 0, 1) + allow + refuse,
        "clone3": _return(_FAIL | errno.ENOSYS),  # its flags are out of reach; libraries fall back to clone
        "kill": to_oneself,
        "tkill": to_oneself,
        "tgkill": to_oneself,
        "prctl": argument + _instruction(_JUMP_EQUAL, kernel.PR_SET_PDEATHSIG, 0, 1) + refuse + allow,
        "prlimit64": argument + _instruction(_JUMP_EQUAL, 0, 0, 1) + allow + to_oneself,
    }
    program = _instruction(_LOAD_WORD, _ARCH_AT)
    program += _instruction(_JUMP_EQUAL, _ARCH[machine], 1, 0) + _return(_KILL_PROCESS)
    program += _instruction(_LOAD_WORD, _NUMBER_AT)
    if machine == "x86_64":
        program += _instruction(_JUMP_AT_LEAST, _X32, 0, 1) + refuse
    for name, number in numbers.items():
        block = blocks[name] if name in _CONDITIONAL else refuse
        program += _instruction(_JUMP_EQUAL, number, 0, len(block) // 8) + block
    return program + allow


def _return(value: int) -> bytes:
    return _instruction(_RETURN, value)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
