-- The function library: what clients call. A function gets the timer's key alone, and finds the partition by it. In a
-- cluster it answers TRYAGAIN, and has changed nothing, while the slot of the key moves to another server.

arguments.MAX_KEY, arguments.MAX_PART, arguments.MAX_DELAY, arguments.MAX_ATTEMPT = 1024, 128, 315360000000, 2147483647

function arguments.fault(text) return redis.error_reply('ERR timerd: ' .. text) end

-- arguments.check_key returns the fault of a timer key, or nil and its app.
function arguments.check_key(key)
  if #key > arguments.MAX_KEY then
    return 'the key has ' .. #key .. ' bytes, at most ' .. arguments.MAX_KEY .. ' are allowed'
  end
  local app, module, typ = string.match(key, '^([^:]+):([^:]+):([^:]+):.+$')
  if not app then
    return 'the key is not a timer key: want app:module:type:id with four non-empty parts'
  end
  if #app > arguments.MAX_PART or #module > arguments.MAX_PART or #typ > arguments.MAX_PART then
    return 'app, module and type of the key may have at most ' .. arguments.MAX_PART .. ' bytes each'
  end
  return nil, app
end

-- The length of an argument comes first: a pattern takes Redis 10 ns and more for each of up to 512 MB. So does the
-- number of arguments: more than MAX_ARGUMENTS say something twice.
arguments.MAX_WORD, arguments.MAX_ARGUMENTS = 16, 32

-- MAX_INTEGER is the length of an integer of 64 bits. Callers refuse numbers out of range.
local MAX_INTEGER = 20

-- arguments.parse_integer reads an integer, or returns nil.
function arguments.parse_integer(s)
  if s and #s <= MAX_INTEGER and string.find(s, '^-?%d+$') then return tonumber(s) end
end

-- word returns an argument in capitals, or an empty text if it is missing or longer than any option.
function arguments.word(s) return s and #s <= arguments.MAX_WORD and string.upper(s) or '' end

-- arguments.too_large returns the fault of a payload that is too large.
function arguments.too_large(payload)
  return 'the payload has ' .. #payload .. ' bytes, at most ' .. int(MAX_PAYLOAD) .. ' are allowed'
end

-- arguments.too_many returns the fault of too many arguments.
function arguments.too_many(args) return #args .. ' arguments, at most ' .. arguments.MAX_ARGUMENTS
  .. ' are allowed' end

-- arguments.read_late reads LATE ms and perhaps DROP, at a place among arguments. It returns the option of the record,
-- and the place behind it; or nil and the fault.
function arguments.read_late(args, i)
  local ms = arguments.parse_integer(args[i + 1])
  if not ms or ms < 0 or ms > arguments.MAX_DELAY then
    return nil, 'LATE wants milliseconds, an integer from 0 (no limit) to ' .. int(arguments.MAX_DELAY)
  end
  local drop = arguments.word(args[i + 2]) == 'DROP'
  return (drop and ';D=' or ';L=') .. int(math.abs(ms)), i + (drop and 3 or 2)
end

-- arguments.read_guard reads UNLESS key or IF key.
function arguments.read_guard(given, args, i, option)
  if given[option] then return nil, option .. ' can be given once' end
  local key = args[i + 1]
  if not key or key == '' or #key > arguments.MAX_KEY then
    return nil, option .. ' wants a key of 1 to ' .. arguments.MAX_KEY .. ' bytes'
  end
  given[option] = key
  return i + 2
end

-- arguments.check_guards returns the fault of the guards of a timer, or nil.
function arguments.check_guards(given, key)
  for _, option in ipairs({ 'UNLESS', 'IF' }) do
    if given[option] and not guards.is_here(given[option]) then
      local tag = string.match(key, '^[^{]*{([^}]+)}')
      local fix = tag and 'give it the hash tag {' .. tag .. '}'
        or string.find(key, '[{}]') and 'give both keys one hash tag'
        or 'give it the hash tag {' .. key .. '}, or both keys one'
      return option .. ' names a key of another slot than the timer has: ' .. fix
    end
  end
end

local TRACE_BYTES = 55

-- arguments.trace_option returns the option of a record with a W3C traceparent, or nothing of a malformed one.
function arguments.trace_option(text)
  if #text ~= TRACE_BYTES then return '' end
  local version, trace, span = string.match(text, '^(%x%x)%-(%x+)%-(%x+)%-%x%x$')
  if not version or #trace ~= 32 or #span ~= 16 or version == 'ff' or string.find(text, '%u')
    or not string.find(trace, '[^0]') or not string.find(span, '[^0]') then return '' end
  return ';T=' .. text
end

-- open_to_set checks the key of a function that sets a timer, and its first argument, the payload, and opens the index.
-- It returns the key's app; or nil and an error reply. wants names the arguments that must follow, for the error.
function arguments.open_to_set(name, wants, keys, args)
  if #keys ~= 1 then return nil, arguments.fault(name .. ' wants one key, got ' .. #keys) end
  local wrong, app = arguments.check_key(keys[1])
  if wrong then return nil, arguments.fault(wrong) end
  if #args < 3 then return nil, arguments.fault(name .. ' wants: payload, then ' .. wants) end
  if #args > arguments.MAX_ARGUMENTS then return nil, arguments.fault(arguments.too_many(args)) end
  if #args[1] > MAX_PAYLOAD then return nil, arguments.fault(arguments.too_large(args[1])) end
  local refusal = partition.open(keys[1])
  if refusal then return nil, refusal end
  return app
end

-- read_options reads options with a table of readers: functions that read an option at a place among the arguments into
-- given, and return the place behind it, or nil and the fault. read_options returns given, or nil and the fault:
-- unknown for an option without a reader.
function arguments.read_options(readers, args, first, unknown)
  local given, i = {}, first
  while i <= #args do
    local option, wrong = arguments.word(args[i]), unknown
    if readers[option] then i, wrong = readers[option](given, args, i, option) else i = nil end
    if not i then return nil, wrong end
  end
  return given
end

-- read_exists reads NX or XX.
function arguments.read_exists(given, _, i, option)
  if given.exists then return nil, 'NX or XX can be given once' end
  given.exists = option
  return i + 1
end

-- arguments.open_one_key returns the key of a function that takes nothing else, and opens its index; or an error reply
-- behind it.
function arguments.open_one_key(name, keys, args)
  if #keys ~= 1 then return nil, arguments.fault(name .. ' wants one key, got ' .. #keys) end
  if #args > 0 then return nil, arguments.fault(name .. ' takes no arguments') end
  local wrong = arguments.check_key(keys[1])
  if wrong then return nil, arguments.fault(wrong) end
  return keys[1], partition.open(keys[1])
end
