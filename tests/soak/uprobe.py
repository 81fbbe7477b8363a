"""A uprobe on one process, made by the kernel's perf events."""
import ctypes, os, struct
from soak import mappings

KIND = "/sys/bus/event_source/devices/uprobe/type"
# The number is that of x86_64.
PERF_EVENT_OPEN = 298
CLOSE_ON_EXEC = 8


class Uprobe:
    """A uprobe at an address of a file that the process has mapped. It counts its hits."""

    def __init__(self, pid, file, address, at_return):
        offset = None
        for m in mappings(pid):
            start, end = (int(x, 16) for x in m[0].split("-"))
            if start <= address < end:
                offset = address - start + int(m[2], 16)
        path = ctypes.create_string_buffer(file.encode())
        with open(KIND) as f:
            kind = int(f.read())
        # struct perf_event_attr: type, size, config, ..., config1 (a path), config2 (an offset).
        attr = bytearray(128)
        struct.pack_into("=IIQ", attr, 0, kind, len(attr), int(at_return))
        struct.pack_into("=QQ", attr, 56, ctypes.addressof(path), offset)
        buffer = (ctypes.c_char * len(attr)).from_buffer(attr)
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd = libc.syscall(PERF_EVENT_OPEN, buffer, pid, -1, -1, CLOSE_ON_EXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "perf_event_open")

    def hits(self):
        return struct.unpack("=Q", os.read(self.fd, 8))[0]

    def close(self):
        os.close(self.fd)
