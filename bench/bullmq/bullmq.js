// BullMQ as bench/ measures it. `node bullmq.js set HOST:PORT` sets a job for each line "N due-ms payload" of its stdin
// and answers an empty line with "set" once all are in Redis. `node bullmq.js work HOST:PORT` works on them and reports
// each as "N received-µs 0 0".
'use strict';

const readline = require('node:readline');
const { Queue, Worker } = require('bullmq');

const [mode, address] = process.argv.slice(2);
const [host, port] = address.split(':');
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const name = 'bench';
const batch = 1000;

async function set() {
  const queue = new Queue(name, { connection, defaultJobOptions: { removeOnComplete: true } });
  let jobs = [];
  const flush = async () => {
    const now = Date.now();
    await queue.addBulk(
      jobs.map(({ due, payload }) => ({ name, data: payload, opts: { delay: Math.max(0, due - now) } })),
    );
    jobs = [];
  };
  for await (const line of readline.createInterface({ input: process.stdin })) {
    if (line === '') {
      await flush();
      process.stdout.write('set\n');
      continue;
    }
    const [, due, payload] = line.split(' ', 3);
    jobs.push({ due: Number(due), payload: JSON.parse(payload) });
    if (jobs.length === batch) await flush();
  }
  await queue.close();
}

async function work() {
  // Date.now() has whole milliseconds only, and would make a job look early that is on time.
  const micros = () => Math.floor((performance.timeOrigin + performance.now()) * 1000);
  let lines = '';
  setInterval(() => {
    if (lines !== '') process.stdout.write(lines);
    lines = '';
  }, 20);
  const handle = async (job) => { lines += `${job.data.n} ${micros()} 0 0\n`; };
  const worker = new Worker(name, handle, { connection, concurrency: 100 });
  worker.on('error', (error) => process.stderr.write(`${error}\n`));
  await worker.waitUntilReady();
  process.stdout.write('ready\n');
  process.on('SIGTERM', async () => {
    await worker.close();
    process.exit(0);
  });
}

(mode === 'set' ? set() : work()).catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
