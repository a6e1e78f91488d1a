-- The fields of data that are of no timer: see index.lua.
local META = { ':l:', ':?:', ':h:' }

-- without_meta takes those that a partition's data has off a number of its fields.
local function without_meta(data, fields)
  for i = 1, #META do fields = fields - redis.call('HEXISTS', data, META[i]) end
  return fields
end
