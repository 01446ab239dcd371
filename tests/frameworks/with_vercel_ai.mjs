// The Vercel AI SDK: tool calls with their results and answers of a schema, whole and streamed, by both its providers.
import assert from 'node:assert/strict'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'

const where = { name: 'octavo', baseURL: `${process.argv[2]}/v1`, apiKey: 'none' }
const compatible = createOpenAICompatible({ ...where, includeUsage: true, supportsStructuredOutputs: true })
const openai = createOpenAI(where)
const output = Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) })
const anna = { name: 'Anna', age: 31 }
const temperature = tool({
  description: 'The temperature in a city.',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `22 degrees in ${city}`,
})
const forced = { type: 'tool', toolName: 'temperature' }

for (const model of [compatible('smollm2'), openai.chat('smollm2'), openai.responses('smollm2')]) {
  const asked = { model, temperature: 0, maxOutputTokens: 200, maxRetries: 0 }
  const person = { ...asked, output, prompt: 'Anna is 31 years old. Who is she?' }
  assert.deepEqual((await generateText(person)).output, anna)
  assert.deepEqual(await streamText(person).output, anna)

  const question = { ...asked, tools: { temperature }, prompt: 'How warm is it in Paris?' }
  const steps = await generateText({
    ...question,
    stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? forced : 'none' }),
  })
  assert.deepEqual(steps.steps[0].toolCalls.map((call) => call.input), [{ city: 'Paris' }])
  assert.deepEqual(steps.steps[0].toolResults.map((result) => result.output), ['22 degrees in Paris'])
  assert.deepEqual([steps.steps.length, steps.text.length > 0], [2, true])
  const streamed = streamText({ ...question, toolChoice: forced })
  assert.deepEqual((await streamed.toolCalls).map((call) => call.input), [{ city: 'Paris' }])
  assert.ok((await streamed.usage).outputTokens > 0)
}
const { embeddings } = await embedMany({ model: compatible.embeddingModel('smollm2'), values: ['a', 'b'] })
assert.equal(embeddings.length, 2)
