-- open_partition_of opens the index of a timer. A Redis that is not a cluster has one
-- partition.
local function open_partition_of() open(PREFIX .. SINGLE .. SUFFIX) end
