-- replace.find_way looks at the timer that a key's new one replaces. It returns false if exists (NX, XX or nil) forbids
-- it; else true, whether the key may have a contested timer, and of a pending timer that is due its due time and when
-- its key runs out.
function replace.find_way(key, exists)
  local scores = redis.call('ZMSCORE', run.due, key, ':?:' .. key)
  local was = tonumber(scores[1] or nil)
  if was or exists then
    local at = ttl.read(key)
    local live = at == -1 or at > clock.due()
    if at == -2 and was and was > clock.due() then -- evicted, or deleted and we have not heard
      live = entry.may_be_absent(redis.call('HGET', run.data, key) or ':')
    end
    if exists and not live then
      local _, state = states.first_unclaimed(key)
      live = was ~= nil and was <= clock.due() or state == 'held' or state == 'owed'
        or redis.call('ZSCORE', run.prefix .. 'repeat', key) and (not was or was <= clock.due())
    end
    if exists == 'NX' and live or exists == 'XX' and not live then return false end
    if was and was <= clock.due() then return true, true, was, at end -- it may become contested
  end
  return true, scores[2]
end

-- replace.may_replace returns an error reply if the caller may not set a timer in place of the older one, else nil. was
-- and serial are as replace.make_way gets them, app is apps.unknown's. If there is nothing of these, it does not ask
-- for HSET, which then is the first write.
function replace.may_replace(key, was, serial, app)
  local may = redis.acl_check_cmd
  if not (was or serial or app) and may('SET', key, '') and may('ZADD', run.due, '0', '') then return nil end
  return rights.missing('SET', key, 'the key') or rights.missing('ZADD', run.due, run.due)
    or app and rights.missing_all(rights.OF.know_app) or was and rights.missing_all(rights.OF.owing)
    or serial and rights.missing_all(rights.OF.ending)
end

-- replace.make_way is called before a timer is set in place of its key's pending one: it ends a repetition, if there is
-- a serial, and a timer that is due already is owed. was and at are results of replace.find_way.
function replace.make_way(key, was, at, serial)
  if was and contest.differs(at, was) then
    contest.judge(key, was, 0, 0, nil, true)
  elseif was then
    firings.owe(key, was)
  end
  repetition.finish(key, serial, account.REPLACED)
end

-- present returns the due time in place of a past one: now, or the next ms if another timer of the key may have the id
-- of now.
function replace.present(key)
  local now = clock.due()
  return (index.pending(key) == now or firings.age(key) == 0) and now + 1 or now
end
