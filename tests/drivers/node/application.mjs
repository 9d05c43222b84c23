// What applications do with node-postgres.  One line a case; see drivers.py.

import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import Cursor from 'pg-cursor'
import { from as copyFrom, to as copyTo } from 'pg-copy-streams'

async function withClient(work, options = {}) {
  const client = new pg.Client(options)
  await client.connect()
  try {
    return await work(client)
  } finally {
    await client.end()
  }
}

async function until(condition, what) {
  for (let i = 0; i < 6000; i++) {
    if (await condition()) return
    await sleep(10)
  }
  throw new Error(`${what} did not happen`)
}

const cases = {
  async pool_runs_many_queries() {
    const pool = new pg.Pool({ max: 20 })
    try {
      const answers = await Promise.all(
        Array.from({ length: 400 }, (_, i) => pool.query('SELECT $1::int * 2 AS twice', [i])),
      )
      answers.forEach((answer, i) => assert.equal(answer.rows[0].twice, i * 2))
    } finally {
      await pool.end()
    }
  },

  async named_queries_are_prepared_once() {
    await withClient(async (client) => {
      for (let i = 0; i < 20; i++) {
        const { rows } = await client.query({ name: 'add', text: 'SELECT $1::int + 1 AS sum', values: [i] })
        assert.equal(rows[0].sum, i + 1)
      }
      const { rows } = await client.query("SELECT name FROM pg_prepared_statements WHERE name = 'add'")
      assert.equal(rows.length, 1)
    })
  },

  async transactions_commit_and_roll_back() {
    await withClient(async (client) => {
      await client.query('DROP TABLE IF EXISTS node_tx; CREATE TABLE node_tx (a int)')
      await client.query('BEGIN')
      await client.query('INSERT INTO node_tx VALUES ($1)', [1])
      await client.query('COMMIT')
      await client.query('BEGIN')
      await client.query('INSERT INTO node_tx VALUES ($1)', [2])
      await assert.rejects(client.query('SELECT 1/0'), { code: '22012' })
      await assert.rejects(client.query('SELECT 1'), { code: '25P02' })
      await client.query('ROLLBACK')
      const { rows } = await client.query('SELECT a FROM node_tx')
      assert.deepEqual(rows, [{ a: 1 }])
      await client.query('DROP TABLE node_tx')
    })
  },

  async types_go_there_and_back() {
    await withClient(async (client) => {
      const values = [7, 'text ä', true, { a: [1, null] }, [1, 2, 3], Buffer.from([0, 255, 1]), null, '12345678901234567890']
      const { rows } = await client.query(
        'SELECT $1::int a, $2::text b, $3::bool c, $4::jsonb d, $5::int[] e, $6::bytea f, $7::text g, $8::numeric h',
        values,
      )
      const row = rows[0]
      assert.deepEqual([row.a, row.b, row.c, row.d, row.e, row.f, row.g, row.h], values)
      const moment = new Date('2024-03-04T05:06:07.089Z')
      const answer = await client.query('SELECT $1::timestamptz AS moment', [moment])
      assert.equal(answer.rows[0].moment.getTime(), moment.getTime())
    })
  },

  async error_has_its_fields() {
    await withClient(async (client) => {
      await client.query('CREATE TEMP TABLE uniq (a int PRIMARY KEY); INSERT INTO uniq VALUES (1)')
      await assert.rejects(client.query('INSERT INTO uniq VALUES (1)'), {
        code: '23505', table: 'uniq', constraint: 'uniq_pkey', severity: 'ERROR',
      })
      await assert.rejects(client.query('SELEC'), { code: '42601', position: '1' })
      assert.equal((await client.query('SELECT 1 AS a')).rows[0].a, 1)
    })
  },

  async listen_and_notify() {
    await withClient(async (listener) => {
      const heard = []
      listener.on('notification', (message) => heard.push(message.payload))
      await listener.query('LISTEN node_news')
      await withClient(async (speaker) => {
        await speaker.query("NOTIFY node_news, 'one'")
        await speaker.query('SELECT pg_notify($1, $2)', ['node_news', 'two'])
      })
      await until(() => heard.length === 2, 'notification')
      assert.deepEqual(heard, ['one', 'two'])
      await listener.query('UNLISTEN node_news')
    })
  },

  async cancel_ends_a_query() {
    await withClient((other) =>
      withClient(async (client) => {
        for (let i = 0; i < 3; i++) {
          const query = client.query('SELECT pg_sleep(60)')
          const rejected = assert.rejects(query, { code: '57014' })
          // A request that comes before the query runs cancels nothing.
          await until(() => sleeps(other), 'the query')
          await cancel(client)
          await rejected
          assert.equal((await client.query('SELECT 1 AS a')).rows[0].a, 1)
        }
      }),
    )
  },

  async cursor_reads_in_pieces() {
    await withClient(async (client) => {
      const cursor = client.query(new Cursor('SELECT generate_series(1, $1::int) AS i', [250]))
      let sum = 0
      for (;;) {
        const rows = await cursor.read(100)
        if (rows.length === 0) break
        for (const row of rows) sum += row.i
      }
      await cursor.close()
      assert.equal(sum, (250 * 251) / 2)
    })
  },

  async copy_in_and_out() {
    await withClient(async (client) => {
      await client.query('CREATE TEMP TABLE copied (a int, b text)')
      const lines = Array.from({ length: 20000 }, (_, i) => `${i}\tline ${i}\n`)
      await pipeline(Readable.from(lines), client.query(copyFrom('COPY copied FROM STDIN')))
      const parts = []
      const stream = client.query(copyTo('COPY (SELECT * FROM copied ORDER BY a) TO STDOUT'))
      for await (const part of stream) parts.push(part)
      assert.equal(Buffer.concat(parts).toString(), lines.join(''))
    })
  },

  async settings_stay_with_the_session() {
    const work = async (name) =>
      withClient(async (client) => {
        await client.query(`SET my.name = '${name}'`)
        await client.query('SELECT set_config($1, $2, false)', ['work_mem', `${name}MB`])
        for (let i = 0; i < 20; i++) {
          const { rows } = await client.query("SELECT current_setting('my.name') n, current_setting('work_mem') w")
          assert.deepEqual(rows[0], { n: name, w: `${name}MB` })
        }
      })
    await Promise.all(['11', '12', '13', '14', '15', '16'].map(work))
    await withClient(async (client) => {
      const { rows } = await client.query("SELECT current_setting('my.name', true) n")
      assert.equal(rows[0].n, null)
    })
  },

  async multi_statement_query() {
    await withClient(async (client) => {
      const answers = await client.query('SELECT 1 AS a; SELECT 2 AS b; SET my.x = 3')
      assert.deepEqual(answers.map((answer) => answer.command), ['SELECT', 'SELECT', 'SET'])
    })
  },

  async statement_timeout() {
    await withClient(
      async (client) => {
        await assert.rejects(client.query('SELECT pg_sleep(60)'), { code: '57014' })
        assert.equal((await client.query('SHOW statement_timeout')).rows[0].statement_timeout, '3s')
      },
      { statement_timeout: 3000 },
    )
  },

  async notice_reaches_its_handler() {
    await withClient(async (client) => {
      const heard = []
      client.on('notice', (notice) => heard.push(notice.message))
      await client.query("DO $$BEGIN RAISE NOTICE 'hello %', 1; END$$")
      assert.deepEqual(heard, ['hello 1'])
    })
  },

  async large_values() {
    await withClient(async (client) => {
      const text = 'x'.repeat(5_000_000)
      const { rows } = await client.query('SELECT $1::text AS text, length($1) AS length', [text])
      assert.equal(rows[0].length, text.length)
      assert.equal(rows[0].text, text)
    })
  },

  async queued_queries_keep_their_order() {
    await withClient(async (client) => {
      const answers = await Promise.all(Array.from({ length: 100 }, (_, i) => client.query(`SELECT ${i} AS i`)))
      answers.forEach((answer, i) => assert.equal(answer.rows[0].i, i))
    })
  },
}

async function sleeps(other) {
  const { rows } = await other.query("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'PgSleep'")
  return rows.length > 0
}

// A cancel request goes over a connection of its own, as libpq's does.
async function cancel(client) {
  const other = new pg.Client()
  const connection = other.connection
  await new Promise((resolve, reject) => {
    connection.on('connect', () => connection.cancel(client.processID, client.secretKey))
    connection.on('end', resolve)
    connection.on('error', reject)
    connection.connect(Number(process.env.PGPORT), process.env.PGHOST)
  })
}

for (const [name, run] of Object.entries(cases)) {
  try {
    await run()
    console.log(`ok ${name}`)
  } catch (failure) {
    console.log(`not ok ${name}: ${String(failure?.stack ?? failure).replaceAll('\n', ' / ')}`)
  }
}
