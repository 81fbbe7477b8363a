# The same of Python: values of a dictionary; "own" leaks bytes of 3,000.
import random, sys, time
leaks = sys.argv[2] == "own"
cache = {i: bytes(600 + i % 8 * 64) for i in range(20000)}
kept = []
def request(leak):
    at = random.randrange(20000)
    cache[at] = bytes(600 + at % 8 * 64)
    if leak:
        kept.append(bytes(2967))
for i in range(40000):
    request(False)
print("ready", flush=True)
start, n = time.monotonic(), 0
while True:
    while n < (time.monotonic() - start) * 1000:
        request(leaks)
        n += 1
    time.sleep(0.001)
