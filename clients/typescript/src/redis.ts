// These types say nothing about arguments, whose types differ between the versions of the packages.

/** A client of package `redis` (node-redis) 4 or later: for one server, a pool, a cluster or sentinels. */
export interface NodeRedis {
  fCall(...args: any[]): Promise<unknown>;
  fCallRo(...args: any[]): Promise<unknown>;
}

/** A client of package `ioredis` 5 or later: for one server, sentinels or a cluster. */
export interface IORedis {
  fcall(...args: any[]): Promise<unknown>;
}

/** The caller's own client of Redis, on timerd's database. This package never closes it. */
export type RedisClient = NodeRedis | IORedis;

/** Calls of the function library through some client. */
export interface Caller {
  /** Calls a function that writes. */
  call(name: string, key: Buffer, args: (string | Buffer)[]): Promise<unknown>;
  /** Calls a function that reads; the strings of its reply are Buffers. */
  read(name: string, key: Buffer): Promise<unknown>;
}

/** Finds out which package made the client. */
export function callerOf(client: RedisClient): Caller {
  if ("fCall" in client) return nodeRedis(client as unknown as NodeRedisCalls);
  if ("fcall" in client) return ioredis(client as unknown as IORedisCalls);
  throw new TypeError(
    "timerd: the client of Redis is neither one of package redis, 4 or later, nor of ioredis, 5 or later",
  );
}

type Argument = string | Buffer;

/** ioredis's calls. */
interface IORedisCalls {
  fcall(name: string, keys: number, key: Buffer, ...args: Argument[]): Promise<unknown>;
  fcall_roBuffer(name: string, keys: number, key: Buffer): Promise<unknown>;
}

function ioredis(client: IORedisCalls): Caller {
  return {
    call: (name, key, args) => client.fcall(name, 1, key, ...args),
    read: (name, key) => client.fcall_roBuffer(name, 1, key), // callBuffer fails with enableAutoPipelining
  };
}

/** node-redis's calls. */
interface NodeRedisCalls {
  fCall(name: string, options: { keys: Argument[]; arguments: Argument[] }): Promise<unknown>;
  fCallRo(name: string, options: { keys: Argument[]; arguments: Argument[] }): Promise<unknown>;
  withTypeMapping?(mapping: Record<number, typeof Buffer>): NodeRedisCalls; // since version 5
  sendCommand(...args: unknown[]): Promise<unknown>;
}

/** RESP's type of bulk strings: $. */
const bulkString = 36;

function nodeRedis(client: NodeRedisCalls): Caller {
  const bytes = client.withTypeMapping?.({ [bulkString]: Buffer });
  return {
    call: (name, key, args) => client.fCall(name, { keys: [key], arguments: args }),
    read: (name, key) => {
      if (bytes) return bytes.fCallRo(name, { keys: [key], arguments: [] });
      // Version 4 has its own symbol for options of a command, but for this way to send one.
      const command = ["FCALL_RO", name, "1", key];
      const options = { returnBuffers: true };
      const isCluster = "masters" in client;
      return isCluster ? client.sendCommand(key, true, command, options) : client.sendCommand(command, options);
    },
  };
}
