// The same of node: buffers in an array; "own" leaks buffers of 9,000 bytes.
const leaks = process.argv[3] === "own";
const cache = Array.from({ length: 5000 }, (_, i) => Buffer.alloc(5000 + (i % 8) * 64));
const kept = [];
function request(leak) {
    const at = Math.floor(Math.random() * cache.length);
    cache[at] = Buffer.alloc(5000 + (at % 8) * 64);
    if (leak) kept.push(Buffer.alloc(9000));
}
for (let i = 0; i < 20000; i++) request(false);
console.log("ready");
const start = Date.now();
let n = 0;
setInterval(() => {
    for (; n < Date.now() - start; n++) request(leaks);
}, 1);
