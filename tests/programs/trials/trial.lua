-- The same of Lua: values of a table; "own" leaks strings of 3,000 bytes. The clock is a shell's, as Lua has none to wait by.
local leaks = arg[2] == "own"
local cache, kept, made = {}, {}, 0
local function value(size)
    made = made + 1
    return string.rep("x", size - 12) .. string.format("%012d", made)
end
for i = 0, 19999 do cache[i] = value(600 + i % 8 * 64) end
local function request(leak)
    local at = math.random(0, 19999)
    cache[at] = value(600 + at % 8 * 64)
    if leak then kept[#kept + 1] = value(2975) end
end
for _ = 1, 40000 do request(false) end
collectgarbage()
local ticks = io.popen("while echo; do sleep 0.02; done", "r")
io.write("ready\n")
io.flush()
while ticks:read("l") do
    for _ = 1, 20 do request(leaks) end
end
