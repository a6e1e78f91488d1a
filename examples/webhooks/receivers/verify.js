// Receives one webhook, verifies it with the library of Standard Webhooks, prints the result, and ends.
//
//   npm ci
//   WEBHOOK_SECRET=whsec_… node verify.js 9000

import { createServer } from "node:http";
import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env.WEBHOOK_SECRET);

const server = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks).toString(); // the bytes as they came: verify them before parsing
  try {
    webhook.verify(body, request.headers);
  } catch (error) {
    response.writeHead(401).end();
    console.log(`refused: ${error.message}`);
    server.close();
    return;
  }
  const event = JSON.parse(body);
  response.writeHead(204).end();
  console.log(`verified: ${event.subject}, attempt ${event.attempt}`);
  server.close();
});
server.keepAliveTimeout = 1;
server.listen(Number(process.argv[2]), "127.0.0.1", () => console.log("listening"));
