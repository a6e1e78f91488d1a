-- How Redis calls the functions of a library. A function finds a global in three tables, one after the other; so each
-- library has the globals that it uses much as locals. While it loads they are not there yet, in Redis 7.0, but for
-- redis, which then has register_function alone: the first call sets them.
local function globals() return redis, string, math, table, tonumber, type, pcall, unpack, ipairs end
local redis, string, math, table, tonumber, type, pcall, unpack, ipairs = redis

local function bound(f)
  return function(keys, args)
    if not tonumber then redis, string, math, table, tonumber, type, pcall, unpack, ipairs = globals() end
    return f(keys, args)
  end
end
