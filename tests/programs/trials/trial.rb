# The same of Ruby: values of an array; "own" leaks arrays of 3,000 bytes, which another function of the
# interpreter makes than strings: frames of Ruby itself are not in a stack.
leaks = ARGV[1] == "own"
cache = Array.new(20000) { |i| "x" * (600 + i % 8 * 64) }
kept = []
request = lambda do |leak|
  at = rand(20000)
  cache[at] = "y" * (600 + at % 8 * 64)
  kept << Array.new(375, 0) if leak
end
40000.times { request.call(false) }
puts "ready"
$stdout.flush
clock = -> { Process.clock_gettime(Process::CLOCK_MONOTONIC) }
start, n = clock.call, 0
loop do
  while n < (clock.call - start) * 1000
    request.call(leaks)
    n += 1
    # By itself Ruby collects this heap only every half minute, and until then it does grow.
    GC.start if n % 500 == 0
  end
  sleep 0.001
end
