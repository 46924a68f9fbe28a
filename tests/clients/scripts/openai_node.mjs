// The `openai` package for Node.js: node openai_node.mjs URL FILE. Prints a line per step, equal in each run.
import { readFile } from "node:fs/promises";
import OpenAI from "openai";

const [url, note] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "sk-openai-node", maxRetries: 0 });
const print = (name, result) => console.log(`${name}: ${JSON.stringify(result)}`);
const asked = [{ role: "user", content: "The word is salt. Repeat it." }];
const parameters = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const read = ({ path }) => readFile(path, "utf8");

const chat = await client.chat.completions.create({ model: "gpt-5.1", messages: asked });
print("chat", chat.choices[0].message.content);
const stream = client.chat.completions.stream({ model: "gpt-5.1", messages: asked });
print("chat stream", (await stream.finalChatCompletion()).choices[0].message.content);
for (const streamed of [false, true]) {
  const runner = client.chat.completions.runTools({
    model: "gpt-5.1",
    stream: streamed,
    messages: [{ role: "user", content: `What is the word in ${note}?` }],
    tools: [{ type: "function", function: { name: "read_file", parameters, function: read, parse: JSON.parse } }],
  });
  print(`run tools, stream ${streamed}`, await runner.finalContent());
}
const response = await client.responses.create({ model: "gpt-5.1", input: asked[0].content, store: false });
print("response", response.output_text);
const events = client.responses.stream({ model: "gpt-5.1", input: asked[0].content, store: false });
print("response stream", (await events.finalResponse()).output_text);
const first = await client.responses.create({ model: "gpt-5.1", input: "The word is pepper. Repeat it." });
const next = await client.responses.create({ model: "gpt-5.1", input: "Again.", previous_response_id: first.id });
print("previous response", next.output_text);
await client.responses.delete(first.id);
const embeddings = await client.embeddings.create({ model: "text-embedding-3-small", input: ["a", "b"] });
print("embeddings", embeddings.data.map((each) => each.embedding.length));
