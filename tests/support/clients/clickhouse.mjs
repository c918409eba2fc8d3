// Runs the queries of standard input (a JSON list) by @clickhouse/client, as the Go program does.
import { createClient } from '@clickhouse/client'

const [url, password] = process.argv.slice(2)
let text = ''
for await (const part of process.stdin) text += part
const quiet = { error() {}, warn() {}, info() {}, debug() {}, trace() {} }
class Log { constructor() { Object.assign(this, quiet) } }
const client = createClient({
  url, username: 'me', password, database: 'gangline', log: { LoggerClass: Log },
})
const answers = []
for (const query of JSON.parse(text)) {
  try {
    const found = await (await client.query({ query, format: 'JSON' })).json()
    const types = found.meta.map((one) => [one.name, one.type])
    answers.push({ types, rows: found.rows, error: '' })
  } catch (error) {
    answers.push({ types: [], rows: 0, error: `${error.type}: ${error.message}` })
  }
}
await client.close()
console.log(JSON.stringify(answers))
