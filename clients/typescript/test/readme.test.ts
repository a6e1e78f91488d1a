// Runs the examples of README.md; their comments have the expected output.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";

import type { TestTimerd } from "@timerd-io/client/testing";

import { patience, programs, root, startEnvironment } from "./environment.js";

let env: TestTimerd;
before(async () => void (env = await startEnvironment("*=1h,1h")));
after(() => env.stop());

const examples = [...readFileSync(join(root, "README.md"), "utf8").matchAll(/```js\n(.*?)```/gs)].map(
  ([, code]) => code as string,
);

// Their outputs; null for a test, whose success counts.
const prints = [
  'true\npending 1 {"total":"99.00"}\nnull\ncancelled\nunknown\n',
  "1 attempt 1 { to: '1' }\nbusy attempt 2 { to: 'busy' }\nlocked attempt 1 { to: 'locked' }\n",
  null,
];

test("the examples print their comments", () => {
  assert.equal(examples.length, prints.length);
  for (const [i, code] of examples.entries()) {
    const file = join(root, "build", `readme-${i}.mjs`);
    writeFileSync(file, code);
    const { status, stdout, stderr } = spawnSync(process.execPath, [file], {
      encoding: "utf8", timeout: patience,
      env: { ...process.env, TIMERD: programs().timerd, REDIS_URL: env.redisURL, NATS_URL: env.natsURL },
    });
    assert.equal(stderr, "");
    assert.equal(status, 0, stdout);
    const want = prints[i];
    if (want !== null) assert.equal(i === 1 ? stdout.trim().split("\n").sort().join("\n") + "\n" : stdout, want);
  }
});
