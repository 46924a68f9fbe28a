// The `@anthropic-ai/sdk` package: node anthropic_node.mjs URL FILE. Prints a line per step, equal in each run.
import { readFile } from "node:fs/promises";
import Anthropic from "@anthropic-ai/sdk";

const [url, note] = process.argv.slice(2);
const client = new Anthropic({ baseURL: url, apiKey: "sk-anthropic-node", maxRetries: 0 });
const print = (name, result) => console.log(`${name}: ${JSON.stringify(result)}`);
const messages = [{ role: "user", content: "The word is salt. Repeat it." }];
const common = { model: "claude-sonnet-5-5", max_tokens: 99 };

const message = await client.messages.create({ ...common, messages });
print("message", message.content[0].text);
const stream = client.messages.stream({ ...common, messages, thinking: { type: "adaptive" } });
print("stream", (await stream.finalMessage()).content);
const runner = client.beta.messages.toolRunner({
  ...common,
  messages: [{ role: "user", content: `What is the word in ${note}?` }],
  tools: [
    {
      name: "read_file",
      description: "Read a file.",
      input_schema: { type: "object", properties: { path: { type: "string" } }, required: ["path"] },
      run: ({ path }) => readFile(path, "utf8"),
      parse: (input) => input,
    },
  ],
});
print("tool runner", (await runner).content.at(-1).text);
