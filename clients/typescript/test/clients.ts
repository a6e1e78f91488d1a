// The clients of Redis that the package is to work with.

import { Redis as Redis5 } from "ioredis";
import { Redis as Redis6 } from "ioredis-6";
import { createClient as createClient5 } from "redis";
import { createClient as createClient4 } from "redis-4";
import { createClient as createClient6, createClientPool as createClientPool6 } from "redis-6";

import type { RedisClient } from "@timerd-io/client";

/** A connected client, and how to end it. */
export interface Connected {
  client: RedisClient;
  close(): unknown;
}

/** How to connect each of the clients. What says what Node.js it needs, by its major version. */
export const clients: { name: string; node?: number; connect(url: string): Promise<Connected> }[] = [
  { name: "redis 4", connect: async (url) => opened(await createClient4({ url }).connect()) },
  { name: "redis 5", connect: async (url) => opened(await createClient5({ url }).connect()) },
  { name: "redis 5 with RESP 3", connect: async (url) => opened(await createClient5({ url, RESP: 3 }).connect()) },
  { name: "redis 6", node: 20, connect: async (url) => opened(await createClient6({ url }).connect()) },
  { name: "redis 6, a pool", node: 20, connect: async (url) => opened((await createClientPool6({ url }).connect())!) },
  { name: "ioredis 5", connect: async (url) => quitting(new Redis5(url)) },
  { name: "ioredis 6", node: 20, connect: async (url) => quitting(new Redis6(url)) },
];

/** The major version of this Node.js. */
export const nodeVersion = Number.parseInt(process.versions.node, 10);

function opened<C extends RedisClient & { close?(): unknown; disconnect?(): unknown }>(client: C): Connected {
  return { client, close: () => (client.close ? client.close() : client.disconnect?.()) };
}

function quitting<C extends RedisClient & { quit(): Promise<unknown> }>(client: C): Connected {
  return { client, close: () => client.quit() };
}
