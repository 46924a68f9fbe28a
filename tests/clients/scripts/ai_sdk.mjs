// The Vercel AI SDK with its providers: node ai_sdk.mjs URL FILE. Prints a line per step, equal in each run.
import { readFile } from "node:fs/promises";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, note] = process.argv.slice(2);
const options = { baseURL: `${url}/v1`, apiKey: "sk-ai-sdk" };
const openai = createOpenAI(options);
const models = {
  responses: openai("gpt-5.1"),
  chat: openai.chat("gpt-5.1"),
  compatible: createOpenAICompatible({ name: "kvproxy", ...options })("gpt-5.1"),
  messages: createAnthropic(options)("claude-sonnet-5-5"),
};
const tools = {
  read_file: tool({
    description: "Read a file.",
    inputSchema: z.object({ path: z.string() }),
    execute: ({ path }) => readFile(path, "utf8"),
  }),
};

for (const [name, model] of Object.entries(models)) {
  const request = { model, tools, stopWhen: stepCountIs(3), maxRetries: 0, prompt: `What is the word in ${note}?` };
  const whole = await generateText(request);
  const stream = streamText(request);
  console.log(`${name}: ${whole.text} ${whole.steps.length} ${await stream.text} ${(await stream.steps).length}`);
}
const { embedding } = await embed({ model: openai.textEmbeddingModel("text-embedding-3-small"), value: "a" });
console.log(`embeddings: ${embedding.length}`);
