// Package deploy has the files to start an installation from, and embeds the ones that the program itself uses.
// README.md in this directory explains each file.
package deploy

import _ "embed"

//go:embed redis.conf
var redisConf string

// RedisConf returns the text of redis.conf: the Redis settings that timerd is built and tested
// against. Redis 7.0 and later and Valkey load it as it is. It listens on 127.0.0.1:6379 and keeps
// its data in the working directory; append lines, or pass --port and --dir, to change that: the
// last setting wins.
func RedisConf() string { return redisConf }
