import { createServer, connect, type AddressInfo, type Server, type Socket } from "node:net";

/** A TCP proxy whose connections a test can cut. */
export class Proxy {
  readonly #sockets = new Set<Socket>();
  #refusing = false;

  private constructor(private readonly server: Server, readonly url: string) {}

  /** Starts a proxy before the server of a URL. */
  static async start(url: string): Promise<Proxy> {
    const { protocol, hostname, port } = new URL(url);
    const server = createServer((socket) => proxy.#join(socket, hostname, Number(port)));
    await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
    const proxy: Proxy = new Proxy(server, `${protocol}//127.0.0.1:${(server.address() as AddressInfo).port}`);
    return proxy;
  }

  /** Cuts all connections, and refuses new ones until mend. */
  cut(): void {
    this.#refusing = true;
    for (const socket of this.#sockets) socket.destroy();
  }

  mend(): void {
    this.#refusing = false;
  }

  async stop(): Promise<void> {
    this.cut();
    await new Promise((done) => this.server.close(done));
  }

  #join(socket: Socket, host: string, port: number): void {
    if (this.#refusing) return void socket.destroy();
    const other = connect(port, host);
    for (const [one, two] of [[socket, other], [other, socket]] as const) {
      this.#sockets.add(one);
      one.pipe(two);
      one.on("error", () => {});
      one.on("close", () => {
        this.#sockets.delete(one);
        two.destroy();
      });
    }
  }
}
