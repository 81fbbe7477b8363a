"""Work for a python that is attached to: makes and checks objects of all sizes until "stop"."""
import hashlib, json, sys, threading

stop = threading.Event()
rounds, wrong = [0], [0]


def work(seed):
    kept = {}
    n = seed
    while not stop.is_set():
        n += 1
        value = {"n": n, "text": "x" * (n % 1000), "list": list(range(n % 50))}
        text = json.dumps(value)
        kept[n % 500] = (text, hashlib.md5(text.encode()).digest())
        old = kept.get((n * 7) % 500)
        if old and (hashlib.md5(old[0].encode()).digest() != old[1] or
                    json.loads(old[0])["text"].strip("x")):
            wrong[0] += 1
        rounds[0] += 1


threads = [threading.Thread(target=work, args=(i * 1000,), daemon=True) for i in range(2)]
for t in threads:
    t.start()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "stop":
        stop.set()
        for t in threads:
            t.join()
        print("done OK" if wrong[0] == 0 else f"done FAILED {wrong[0]}", rounds[0], flush=True)
    if line.strip() == "quit":
        break
