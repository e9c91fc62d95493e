"""The numbers of the system calls that a program may make, by architecture. `gym_rewards.sandbox.seccomp` uses them.

What is not here does not exist for a program: processes, other programs, the network, signals to others, mounts, namespaces,
shared memory, message queues, keys, tracing, io_uring, bpf, rights, clocks, modes and owners of files.
Source: the headers `asm/unistd_64.h` (x86_64) and `asm-generic/unistd.h` (aarch64) of Linux.
"""

from __future__ import annotations

ARCHITECTURES = ("x86_64", "aarch64")

# fmt: off
NUMBERS: dict[str, tuple[int, int | None]] = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "preadv": (295, 69), "pwritev": (296, 70), "preadv2": (327, 286), "pwritev2": (328, 287),
    "sendfile": (40, 71),
    "open": (2, None), "openat": (257, 56), "close": (3, 57), "close_range": (436, 436), "lseek": (8, 62),
    "ftruncate": (77, 46), "fallocate": (285, 47), "fsync": (74, 82), "fdatasync": (75, 83), "flock": (73, 32),
    "dup": (32, 23), "dup2": (33, None), "dup3": (292, 24), "umask": (95, 166),
    "stat": (4, None), "fstat": (5, 80), "lstat": (6, None), "newfstatat": (262, 79), "statx": (332, 291),
    "statfs": (137, 43), "fstatfs": (138, 44), "access": (21, None), "faccessat": (269, 48),
    "faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78), "getdents64": (217, 61),
    "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "mkdir": (83, None), "mkdirat": (258, 34),
    "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None), "renameat": (264, 38),
    "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37), "symlink": (88, None), "symlinkat": (266, 36),
    "pipe": (22, None), "pipe2": (293, 59), "eventfd2": (290, 19), "poll": (7, None), "ppoll": (271, 73),
    "select": (23, None), "pselect6": (270, 72), "epoll_create1": (291, 20), "epoll_ctl": (233, 21),
    "epoll_wait": (232, None), "epoll_pwait": (281, 22), "epoll_pwait2": (441, 441),
    "sendto": (44, 206), "recvfrom": (45, 207), "shutdown": (48, 210),
    "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233), "brk": (12, 214),
    "futex": (202, 98), "set_robust_list": (273, 99), "set_tid_address": (218, 96),
    "rseq": (334, 293), "exit": (60, 93), "exit_group": (231, 94), "wait4": (61, 260), "waitid": (247, 95),
    "gettid": (186, 178), "getpid": (39, 172), "getppid": (110, 173), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148), "getresgid": (120, 150),
    "getgroups": (115, 158), "getpgrp": (111, None), "getpgid": (121, 155), "getsid": (124, 156),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "pause": (34, None),
    "alarm": (37, None), "setitimer": (38, 103), "getitimer": (36, 102),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "clock_nanosleep": (230, 115), "nanosleep": (35, 101),
    "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153), "getrusage": (98, 165),
    "getrlimit": (97, 163), "sysinfo": (99, 179), "uname": (63, 160), "getcpu": (309, 168),
    "getpriority": (140, 141), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "getrandom": (318, 278),
    # With conditions on their arguments:
    "clone": (56, 220), "fcntl": (72, 25), "ioctl": (16, 29), "mmap": (9, 222),
    "prctl": (157, 167), "prlimit64": (302, 261), "socketpair": (53, 199),
}
# fmt: on
