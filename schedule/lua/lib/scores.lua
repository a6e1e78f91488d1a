-- The score of a firing, in ms:
--   0                    it is owed, and nobody has claimed it
--   a whole number       it is claimed until then
--   HELD + its due time  it is held, see holds.lua
--   with a fraction      nobody has claimed it, and nobody is to before then. The fraction tells why:
--     FREED    a resume has released it, or it had a pause before: no hold holds it any more
--     PAUSED   it was given back with a pause
--     PERHAPS  it was given back, with a pause or without, and its event may be in the stream

-- scores.at writes a score with a fraction.
function scores.at(ms, fraction) return string.format('%.2f', math.floor(ms) + fraction) end

-- scores.is_unclaimed reports by its score whether nobody has claimed a firing; scores.may_be_published, whether it was
-- given back by somebody who may have published it; scores.is_free, whether nobody has claimed it and nobody can have
-- published it. A held firing is free.
function scores.is_unclaimed(score) return score == 0 or score % 1 ~= 0 or score >= HELD end
function scores.may_be_published(score) return score % 1 == PERHAPS end
function scores.is_free(score) return scores.is_unclaimed(score) and not scores.may_be_published(score) end

-- scores.due_of_free returns the due time that decides for a claim whether a free firing is held. A firing that a
-- resume has released stays so, also after a pause: an infinite due time lies within no resume.
function scores.due_of_free(ref, score)
  return score % 1 ~= 0 and math.huge or tonumber(string.match(ref, '^%d+'))
end
