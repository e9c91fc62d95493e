"""What a hostile program may try: attempts that the kernel has to refuse, and ends that only the sandbox can bring.

An attempt is Python that raises OSError where it is refused. `call` makes a system call by name, past every library;
`world` says what there is outside: files, processes, ports. `find` raises OSError where there is nothing to be found.
"""

from __future__ import annotations

RAW = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138),
    "tgkill": (234, 131), "execve": (59, 221), "execveat": (322, 281), "memfd_create": (319, 279), "clone": (56, 220),
    "clone3": (435, 435), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39),
    "pivot_root": (155, 41), "chroot": (161, 51), "fsopen": (430, 430), "open_tree": (428, 428), "move_mount": (429, 429),
    "mount_setattr": (442, 442), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280),
    "perf_event_open": (298, 241), "io_uring_setup": (425, 425), "userfaultfd": (323, 282), "shmget": (29, 194),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180), "mknodat": (259, 33), "open_by_handle_at": (304, 265),
    "setxattr": (188, 5), "truncate": (76, 45), "setuid": (105, 146), "capset": (126, 91), "personality": (135, 92),
    "seccomp": (317, 277), "landlock_create_ruleset": (444, 444), "init_module": (175, 105), "kexec_load": (246, 104),
    "reboot": (169, 142), "swapon": (167, 224), "clock_settime": (227, 112), "settimeofday": (164, 170),
    "sethostname": (170, 161), "syslog": (103, 116), "acct": (163, 89), "inotify_init1": (294, 26),
    "fanotify_init": (300, 262), "timer_create": (222, 107), "sched_setaffinity": (203, 122), "setpriority": (141, 140),
    "ioprio_set": (251, 30), "mlock": (149, 228), "splice": (275, 76), "vmsplice": (278, 75), "sendmsg": (46, 211),
    "prlimit64": (302, 261), "socket": (41, 198), "mmap": (9, 222), "prctl": (157, 167), "fcntl": (72, 25), "ioctl": (16, 29),
}  # fmt: skip

PRELUDE = f"""
import ctypes, errno, json, os, platform, sys
world = json.loads(sys.stdin.readline())
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
RAW = {RAW!r}
def call(name, *arguments):
    number = RAW[name][platform.machine() == "aarch64"]
    result = libc.syscall(ctypes.c_long(number), *[a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments])
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result
def find(things):
    if not things:
        raise OSError(0, "nothing to be found")
    print(things)
"""

TRY_ALL = """
import io
results = {}
for name, source in world["attempts"].items():
    kept, sys.stdout = sys.stdout, io.StringIO()
    try:
        exec(source, dict(globals()))
        results[name] = "WENT THROUGH " + sys.stdout.getvalue().strip()[:200]
    except OSError as error:
        results[name] = f"refused: {errno.errorcode.get(error.errno, error.strerror or error)}"
    except BaseException as error:
        results[name] = f"broken: {type(error).__name__}: {error}"
    sys.stdout = kept
print(json.dumps(results))
"""

_SOCKETS = {
    "INET stream": (2, 1, 0), "INET datagram": (2, 2, 0), "INET raw": (2, 3, 1), "INET6": (10, 1, 0), "UNIX": (1, 1, 0),
    "NETLINK": (16, 3, 0), "PACKET": (17, 3, 3), "VSOCK": (40, 1, 0), "ALG": (38, 5, 0), "MPTCP": (2, 1, 262),
}  # fmt: skip

#: Refused by what files there are, or by whom they belong to.
FILES = {
    "read /etc/passwd": "find(open('/etc/passwd').read())",
    "read a file of the trainer": "find(open(world['secret']).read())",
    "read it through the C library": "fd = libc.open(world['secret'].encode(), 0)\nif fd < 0: raise OSError(2, '')",
    "read it through a link in the work directory": "os.symlink(world['secret'], 'link')\nfind(open('link').read())",
    "read it through a hard link": "os.link(world['secret'], 'hard')\nfind(open('hard').read())",
    "read it through the root of the trainer": "find(open(f'/proc/{world[\"trainer\"]}/root' + world['secret']).read())",
    "list the home": "find(os.listdir(os.path.expanduser('~root')) + os.listdir('/home'))",
    "list the directory of temporary files": "find(os.listdir(os.path.dirname(world['secret'])))",
    "list the directories of other programs": "find([n for n in os.listdir('/tmp') if 'sandbox' in n])",
    "write to a file of the trainer": "open(world['target'], 'w').write('broken')",
    "empty it without writing": "os.close(os.open(world['target'], os.O_RDONLY | os.O_TRUNC))",
    "remove it": "os.remove(world['target'])",
    "move it": "os.rename(world['target'], world['target'] + '-moved')",
    "write history over the checker": "import readline\nreadline.write_history_file(world['checker'])",
    "open the checker itself": "os.close(os.open(world['inside'], os.O_WRONLY))",
    "attach a database over it": "import sqlite3\ntry: sqlite3.connect(world['target']).execute('create table t (x)')\n"
    "except sqlite3.Error as error: raise OSError(13, str(error))",
    "write to the standard library": "open(os.__file__, 'a').write('')",
    "write bytecode for the standard library": "os.close(os.open(world['bytecode'], os.O_WRONLY))",
    "write into /dev": "open('/dev/mine', 'w')",
    "read the memory of the machine": "open('/dev/mem', 'rb')",
    "environment of the trainer": "find(open(f'/proc/{world[\"trainer\"]}/environ').read())",
    "environment of the parent": "find(open(f'/proc/{os.getppid()}/environ').read() + open('/proc/1/environ').read())",
    "memory of the parent": "open(f'/proc/{os.getppid()}/mem', 'r+b')",
    "own environment": "find(dict(os.environ))",
    "token in the environment of C": "libc.getenv.restype = ctypes.c_char_p\nfind(libc.getenv(b'SECRET_TOKEN'))",
    "fork a terminal": "os.forkpty()[0] or os._exit(0)",
    "shared memory of POSIX": "from multiprocessing import shared_memory\nshared_memory.SharedMemory(create=True, size=99)",
    "core pattern": "open('/proc/sys/kernel/core_pattern', 'r+')",
    "control groups": "find(os.listdir('/sys/fs/cgroup'))",
    "inherited descriptors": """
def exists(fd):
    try: return bool(os.fstat(fd))
    except OSError: return False
find([fd for fd in range(3, 64) if exists(fd)])""",
    "raise the limit of memory": """
import resource
try: resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
except ValueError: raise OSError(errno.EPERM, 'no')""",
}

#: Refused by the filter of system calls, whatever the rights of the program.
CALLS = {
    "fork": "os.fork() or os._exit(0)",
    "fork twice to become a daemon": "if os.fork() == 0:\n    os.setsid()\n    os.fork()\n    os._exit(0)",
    "fork by _posixsubprocess": "import subprocess\nsubprocess.Popen([sys.executable, '-c', ''], close_fds=True).wait()",
    "posix_spawn": "os.posix_spawn(sys.executable, [sys.executable, '-c', ''], {})",
    "a pool of processes": "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=print).start()",
    "clone without memory of its own": "call('clone', 17, 0, 0, 0, 0) or os._exit(0)",
    "clone into a user namespace": "call('clone', 0x10000011, 0, 0, 0, 0) or os._exit(0)",
    "clone3": "call('clone3', 0, 0)",
    "execve": "call('execve', b'/nowhere', 0, 0)",
    "memfd": "call('memfd_create', b'x', 0)",
    "execveat": "call('execveat', -1, b'', 0, 0, 0x1000)",
    "signal the trainer": "os.kill(world['trainer'], 0)",
    "kill a neighbour": "os.kill(world['neighbour'], 9)",
    "signal everything": "os.kill(-1, 0)",
    "signal its group": "os.kill(0, 0)",
    "signal a neighbour by tgkill": "call('tgkill', world['neighbour'], world['neighbour'], 9)",
    "signal a neighbour by a pidfd": "import signal\nsignal.pidfd_send_signal(os.pidfd_open(world['neighbour']), 9)",
    "queue a signal": "call('rt_sigqueueinfo', world['neighbour'], 9, 0)",
    "own the signals of a pipe": "call('fcntl', os.pipe()[0], 8, os.getpid())",
    "take descriptors of the trainer": "call('pidfd_getfd', 0, 1, 0)",
    "ptrace": "call('ptrace', 16, world['neighbour'], 0, 0)",
    "read memory of a neighbour": "call('process_vm_readv', world['neighbour'], 0, 0, 0, 0, 0)",
    "write memory of a neighbour": "call('process_vm_writev', world['neighbour'], 0, 0, 0, 0, 0)",
    "compare processes": "call('kcmp', 1, 1, 0, 0, 0)",
    "limits of a neighbour": "call('prlimit64', world['neighbour'], 7, 0, 0)",
    **{f"socket {name}": f"call('socket', {a}, {b}, {c})" for name, (a, b, c) in _SOCKETS.items()},
    "connect to a port": "import socket\nsocket.create_connection(('127.0.0.1', world['port']), 1)",
    "send datagrams from a pair": "import socket\nsocket.socketpair(1, socket.SOCK_DGRAM)[0].sendto(b'x', world['unix'])",
    "send descriptors": "call('sendmsg', 1, 0, 0)",
    "unshare a user namespace": "call('unshare', 0x10000000)",
    "unshare mounts": "call('unshare', 0x10020000)",
    "unshare the network": "call('unshare', 0x50000000)",
    "enter namespaces": "call('setns', 0, 0)",
    "mount": "call('mount', b'none', b'/tmp', b'tmpfs', 0, 0)",
    "unmount": "call('umount2', b'/tmp', 2)",
    "chroot": "os.chroot('/tmp')",
    "pivot_root": "call('pivot_root', b'.', b'.')",
    "open a file system": "call('fsopen', b'tmpfs', 0)",
    "copy a mount": "call('open_tree', -100, b'/', 1)",
    "move a mount": "call('move_mount', -100, b'/', -100, b'/tmp', 0)",
    "make mounts writable": "call('mount_setattr', -100, b'/', 0, 0, 32)",
    "add a key": "call('add_key', b'user', b'x', b'y', 1, -3)",
    "request a key": "call('request_key', b'user', b'x', 0, -3)",
    "read keys": "call('keyctl', 0, -3, 1)",
    "bpf": "call('bpf', 0, 0, 0)",
    "perf_event_open": "call('perf_event_open', 0, 0, -1, -1, 0)",
    "io_uring": "call('io_uring_setup', 1, 0)",
    "userfaultfd": "call('userfaultfd', 1)",
    "another filter": "call('seccomp', 0, 0, 0)",
    "another ruleset": "call('landlock_create_ruleset', 0, 0, 1)",
    "shared memory of System V": "call('shmget', 0, 64 << 20, 0o1600)",
    "semaphores of System V": "call('semget', 0, 100, 0o1600)",
    "messages of System V": "call('msgget', 0, 0o1600)",
    "messages of POSIX": "call('mq_open', b'x', 0o102, 0o600, 0)",
    "shared memory without a name": "import mmap\nmmap.mmap(-1, 1 << 20)",
    "shared memory of /dev/zero": "import mmap\nfd = os.open('/dev/zero', os.O_RDWR)\nmmap.mmap(fd, 1 << 20)",
    "large pipes": "call('fcntl', os.pipe()[0], 1031, 1 << 20)",
    "locks without end": "import fcntl\nfcntl.lockf(open('/dev/null', 'w'), fcntl.LOCK_EX)",
    "memory that stays": "call('mlock', id(call), 1)",
    "gifts to a pipe": "call('vmsplice', os.pipe()[1], 0, 0, 0)",
    "splice": "call('splice', -1, 0, -1, 0, 1, 0)",
    "watch files": "call('inotify_init1', 0)",
    "watch the machine": "call('fanotify_init', 0, 0)",
    "timers": "call('timer_create', 0, 0, 0)",
    "become root": "call('setuid', 0)",
    "take capabilities": "call('capset', 0, 0)",
    "outlive the trainer": "call('prctl', 1, 0, 0, 0, 0)",
    "be traced": "call('prctl', 4, 1, 0, 0, 0)",
    "personality": "call('personality', 0x0040000)",
    "load a module": "call('init_module', 0, 0, b'')",
    "load a kernel": "call('kexec_load', 0, 0, 0, 0)",
    "reboot": "call('reboot', 0, 0, 0, 0)",
    "swap": "call('swapon', b'/tmp', 0)",
    "set the clock": "call('clock_settime', 0, 0)",
    "set the time": "call('settimeofday', 0, 0)",
    "host name": "call('sethostname', b'x', 1)",
    "log of the kernel": "call('syslog', 3, 0, 0)",
    "accounting": "call('acct', 0)",
    "take a processor": "call('sched_setaffinity', 0, 8, b'\\xff' * 8)",
    "priority": "call('setpriority', 0, 0, 10)",
    "priority of disks": "call('ioprio_set', 1, 0, 0)",
    "make a device": "call('mknodat', -100, b'zero', 0o020666, 0x105)",
    "make a fifo": "os.mkfifo('fifo')",
    "open by handle": "call('open_by_handle_at', -100, 0, 0)",
    "attributes of files": "call('setxattr', b'/tmp', b'user.x', b'y', 1, 0)",
    "change modes": "os.chmod(os.path.dirname(world['target']), 0)",
    "change owners": "os.chown('/tmp', 0, 0)",
    "change times": "os.utime(world['target'], (0, 0))",
    "truncate by name": "call('truncate', world['target'].encode(), 0)",
    "type into the terminal": "call('ioctl', 0, 0x5412, b'x')",
}

#: Calls that are not refused where there is no filter: they show that it is the filter that refuses.
WITHOUT_FILTER = (
    "fork", "clone into a user namespace", "memfd", "signal its group", "own the signals of a pipe", "socket INET stream",
    "socket UNIX", "unshare a user namespace", "shared memory of System V", "shared memory without a name",
    "semaphores of System V", "watch files", "outlive the trainer", "be traced", "large pipes", "make a fifo", "priority",
)  # fmt: skip

#: Programs that must be ended or stopped, each in a sandbox of its own; what they print must not contain MADE IT.
ENDS = {
    "infinite loop": "while True: pass",
    "fork bomb": "import os\nwhile True: os.fork()",
    "fork bomb that waits": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "sleeps": "import time\ntime.sleep(1000)",
    "ignores every signal": "import signal, time\nfor s in set(signal.Signals) - {9, 19}: signal.signal(s, 1)\ntime.sleep(1000)",
    "threads that never end": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()",
    "holds the interpreter in C": "import re\nre.match('(a*)*b', 'a' * 99)",
    "memory": "x = []\nwhile True: x.append(bytearray(10**7))",
    "an integer without end": "print(9**9**9)",
    "recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(): f()\nf()",
    "output without end": "while True: print('x' * 10**6)",
    "threads without end": "import threading, time\n"
    "for _ in range(10**5): threading.Thread(target=time.sleep, args=(99,), daemon=True).start()\nprint('MADE IT')",
    "descriptors without end": "fs = [open('/dev/null') for _ in range(10**4)]\nprint('MADE IT')",
    "a large file": "f = open('f', 'wb')\nfor _ in range(99): f.write(bytes(10**6)); f.flush()\nprint('MADE IT')",
    "files that fill the disk": "for i in range(99): open(f'f{i}', 'wb').write(bytes(10**6))\nprint('MADE IT')",
    "files without end": "for i in range(10**4): open(f'f{i}', 'w').close()\nprint('MADE IT')",
    "a fault": "import ctypes\nctypes.string_at(1)",
    "abort": "import os\nos.abort()",
    "the other table of calls (x32)": "import ctypes\nctypes.CDLL(None).syscall(0x40000000 | 39)\nprint('MADE IT')",
    "calls of 32 bits": "import ctypes, ctypes.util\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
    "at = libc.mmap(None, 4096, 7, 0x22, -1, 0)\ncode = bytes.fromhex('b814000000cd80c3')\n"
    "ctypes.memmove(at, code, len(code))\nctypes.CFUNCTYPE(ctypes.c_int)(at)()\nprint('MADE IT')",
    "pretends that there is no sandbox": "import os\nos._exit(125)",
    "pretends that nothing was checked": "import os\nos._exit(3)",
}

#: Programs that try to earn what they do not deserve; `double` has to return twice its argument.
FORGERIES = {
    "equals everything": "class Yes:\n    def __eq__(self, other): return True\n    __hash__ = None\ndef double(x): return Yes()",
    "an int that equals everything": "class Yes(int):\n    def __eq__(self, other): return True\ndef double(x): return Yes()",
    "differs from everything by nothing": """
class Nothing:
    def __init__(self, *given): pass
    def __getattr__(self, name): return lambda *given: set()
    def __iter__(self): return iter(())
    def __len__(self): return 0
    def __abs__(self): return 0
for name in ('add', 'sub', 'mul', 'truediv', 'floordiv', 'mod', 'pow', 'and', 'or', 'xor', 'neg'):
    setattr(Nothing, f'__{name}__', Nothing)
double = Nothing""",
    "is a number nothing away": """
class Nothing:
    def __sub__(self, other): return 0
    __pow__ = __mod__ = __xor__ = __sub__
    def __truediv__(self, other): return 1
def double(x): return Nothing()""",
    "learns from what it is compared with": """
class Curious:
    known = ()
    def __sub__(self, other): Curious.known = other
    def difference(self, other): self.known = other; return set()
    def __iter__(self): return iter(self.known)
def double(x): return Curious()""",
    "a text that equals everything": "class Yes(str):\n    def __eq__(self, other): return True\ndef double(x): return Yes('1')",
    "claims to be of another class": "class Yes:\n    __class__: type = int\n    def __eq__(self, o): return True\n"
    "    def __index__(self): return 0\ndef double(x): return Yes()",
    "exits well": "import os\nos._exit(0)",
    "exits well when called": "import os\ndef double(x): os._exit(0)",
    "exits as if late": "import os\ndef double(x): os._exit(124)",
    "leaves": "import sys\nsys.exit(0)",
    "leaves at exit": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(1)",
    "raises what ends loops": "def double(x): raise StopIteration",
    "raises what ends loops of coroutines": "def double(x): raise StopAsyncIteration",
    "raises what skips tests": "import unittest\ndef double(x): raise unittest.SkipTest('not today')",
    "raises what leaves": "def double(x): raise SystemExit(0)",
    "raises what is no exception": "def double(x): raise GeneratorExit",
    "prints results": 'print("passed")\nprint(\'["returned", {"int": "0x2a"}, [[], {}]]\')\ndef double(x): return 0',
    "writes to every descriptor": """
import os
for fd in range(64):
    try: os.write(fd, b'["double"]\\n["returned", {"int": "0x0"}, []]\\n' * 9)
    except OSError: pass
def double(x): return 0""",
    "patches builtins": """
import builtins, sys
builtins.compile = lambda *a, **k: compile('pass', '', 'exec')
builtins.AssertionError = None
builtins.isinstance = lambda *a: True
builtins.exec = lambda *a: None
sys.excepthook = lambda *a: None
def double(x): return 0""",
    "patches operators": "import operator, builtins\nbuiltins.int.__eq__ = lambda *a: True\ndef double(x): return 0",
    "patches the server": """
import sys
frame = sys._getframe()
while frame:
    for name, value in list(frame.f_globals.items()):
        if callable(value) and not name.startswith('__'):
            frame.f_globals[name] = lambda *a, **k: None
    frame = frame.f_back
def double(x): return 0""",
    "patches every module": """
import sys
for name, module in list(sys.modules.items()):
    if 'inside' in name:
        for key in list(vars(module)): setattr(module, key, lambda *a, **k: 0)
def double(x): return 0""",
    "changes constants": "import ctypes\nctypes.memmove(id(42) + 24, id(0) + 24, 4)\ndef double(x): return 0",
    "searches memory for what is expected": """
import gc
def double(x):
    for thing in gc.get_objects():
        if isinstance(thing, dict) and 'expected' in thing: return thing['expected']
    return 0""",
    "looks up the frames that call it": """
import sys
def double(x):
    frame = sys._getframe()
    while frame:
        for name, value in frame.f_locals.items():
            if name in ('expected', 'test', 'spec', 'check'): return value
        frame = frame.f_back
    return 0""",
    "brings its own names": "def all(xs): return True\nint = all\nclass math: isclose = all\ndef double(x): return 0",
    "brings its own unittest": "class unittest:\n    class TestCase: pass\ndef check(f): pass\ndef double(x): return 0",
    "patches json": "import json\njson.dumps = lambda *a, **k: '[\"returned\", true, []]'\ndef double(x): return 0",
    "answers with garbage": "import json\njson.dumps = lambda *a, **k: '[' * 100000\ndef double(x): return 0",
    "answers with other objects": "import json\nd = json.dumps\n"
    "json.dumps = lambda *a, **k: d(['returned', {'handle': 10**9}, [[], {}]])\ndef double(x): return 0",
    "has a thread that answers": """
import os, threading
def shout():
    while True: os.write(4, b'["returned", {"int": "0x0"}, [[], {}]]\\n')
threading.Thread(target=shout, daemon=True).start()
def double(x): return 0""",
    "answers without end": """
import os
def double(x):
    while True: os.write(1, b'x' * 65536) and os.write(3, b'x' * 65536) and os.write(4, b'x' * 65536)""",
    "changes what it was given": "def double(x):\n    if isinstance(x, list): x[:] = [0]\n    return x",
}
