<?php
// The same of PHP: values of an array; "own" leaks strings of 3,000 bytes. With USE_ZEND_ALLOC=0 they come from malloc.
$leaks = $argv[2] === "own";
$cache = [];
for ($i = 0; $i < 20000; $i++) $cache[$i] = str_repeat(chr(97 + $i % 26), 600 + $i % 8 * 64);
$kept = [];
function request($leak) {
    global $cache, $kept;
    $at = random_int(0, 19999);
    $cache[$at] = str_repeat("y", 600 + $at % 8 * 64);
    if ($leak) $kept[] = str_repeat("z", 2976);
}
for ($i = 0; $i < 40000; $i++) request(false);
echo "ready\n";
$start = hrtime(true);
for ($n = 0;;) {
    for (; $n < (hrtime(true) - $start) / 1e6; $n++) request($leaks);
    usleep(1000);
}
