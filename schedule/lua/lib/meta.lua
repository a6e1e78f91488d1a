-- The fields of data that are of no timer: see index.lua.
meta.FIELDS = { ':l:', ':?:', ':h:' }

-- meta.without takes those that a partition's data has off a number of its fields.
function meta.without(data, fields)
  for i = 1, #meta.FIELDS do fields = fields - redis.call('HEXISTS', data, meta.FIELDS[i]) end
  return fields
end
