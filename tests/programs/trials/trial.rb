# The same of Ruby: values of an array; "own" leaks strings of 3,000 bytes.
leaks = ARGV[1] == "own"
cache = Array.new(20000) { |i| "x" * (600 + i % 8 * 64) }
kept = []
request = lambda do |leak|
  at = rand(20000)
  cache[at] = "y" * (600 + at % 8 * 64)
  kept << "z" * 3000 if leak
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
  end
  sleep 0.001
end
