// The tokenizer beside the native Hugging Face library, in one run, on the same texts.
//
//   node tokenizer_peers.mjs --peers FOLDER --tokenizer tokenizer.json [--program millrace-tokenizer-bench]
//                            [--rounds 5] [--file text,text] [--json results.json]
//
// FOLDER is a peer benchmark after `npm install`: it has the library (npm `tokenizers`) and corpora.mjs, which
// makes the texts. The two take turns on every text, and medians are compared. By default time is what a process
// spent on cores, which other work on the machine disturbs least; both work on one thread, but the library's
// binding also computes offsets. --wall compares by the clock, and measures the second thread as well.
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { spawnSync } from 'node:child_process';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const options = { program: 'build/release/bin/millrace-tokenizer-bench', rounds: '5' };
for (let i = 2; i < process.argv.length; ++i) {
  const name = process.argv[i].replace(/^--/, '');
  options[name] = name === 'wall' ? true : process.argv[++i];
}
for (const name of ['peers', 'tokenizer']) {
  if (!options[name]) throw new Error(`--${name} is missing`);
}

const median = (xs) => [...xs].sort((a, b) => a - b)[Math.floor(xs.length / 2)];
const peers = path.resolve(options.peers);
const { Tokenizer } = createRequire(path.join(peers, 'package.json'))('tokenizers');
const { makeAll } = await import(pathToFileURL(path.join(peers, 'corpora.mjs')));
const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'tokenizer-peers-'));
const texts = makeAll(folder).map(({ name }) => [name, path.join(folder, `${name}.txt`)]);
for (const file of options.file?.split(',') ?? []) texts.push([path.basename(file), file]);
const library = Tokenizer.fromFile(options.tokenizer);

/** MB/s of one call of the library; its ids. */
async function theirs(text, bytes) {
  const calls = Math.max(1, Math.round(20_000 / bytes));
  let ids;
  const cpu = process.cpuUsage();
  const clock = performance.now();
  for (let i = 0; i < calls; ++i) ids = (await library.encode(text, null, { addSpecialTokens: false })).getIds();
  const { user, system } = process.cpuUsage(cpu);
  const seconds = options.wall ? (performance.now() - clock) / 1e3 : (user + system) / 1e6;
  return [bytes * calls / 1e6 / seconds, ids];
}

/** Results of our program on one text, and of its loading. */
function ours(file) {
  const run = spawnSync(options.program, ['--json', '--reps', '5', '--clock', options.wall ? 'wall' : 'cpu',
    '--tokenizer', options.tokenizer, file], { encoding: 'utf8' });
  if (run.status !== 0) throw new Error(run.stderr || `${options.program}: ${run.error ?? run.status}`);
  return run.stdout.trim().split('\n').map((line) => JSON.parse(line));
}

const results = [];
const loads = [];
const load1 = os.loadavg()[0];
for (const [name, file] of texts) {
  const text = fs.readFileSync(file, 'utf8');
  const bytes = fs.statSync(file).size;
  const rounds = [];
  await theirs(text, bytes);
  for (let i = 0; i < Number(options.rounds); ++i) {
    const [rate, ids] = await theirs(text, bytes);
    const [load, mine] = ours(file);
    if (mine.tokens !== ids.length) throw new Error(`${name}: ${mine.tokens} tokens, theirs ${ids.length}`);
    loads.push(load);
    rounds.push({ theirs: rate, ours: mine.mb_per_s, gain: mine.threads_mb_per_s / mine.mb_per_s,
      machine: mine.machine_gain });
  }
  const of = (key) => median(rounds.map((round) => round[key]));
  results.push({ text: name, bytes, theirs: of('theirs'), ours: of('ours'), ratio: of('ours') / of('theirs'),
    second_core: options.wall ? of('gain') : null, machine_limit: options.wall ? of('machine') : null });
}
fs.rmSync(folder, { recursive: true });

const rates = results.map((result) => result.ours);
const summary = {
  clock: options.wall ? 'wall' : 'cpu', load1, cpu: os.cpus()[0].model, load_ms: median(loads.map((l) => l.load_ms)),
  resident_mb: median(loads.map((l) => l.resident_mb)), slowest_of_median: median(rates) / Math.min(...rates),
};
console.log('| text | bytes | library, MB/s | Millrace, MB/s | ratio | two threads | arithmetic |');
console.log('| --- | ---: | ---: | ---: | ---: | ---: | ---: |');
for (const r of results) {
  console.log(`| ${r.text} | ${r.bytes} | ${r.theirs.toFixed(2)} | ${r.ours.toFixed(1)} | ${r.ratio.toFixed(1)} | ` +
    `${r.second_core?.toFixed(2) ?? ''} | ${r.machine_limit?.toFixed(2) ?? ''} |`);
}
console.log(JSON.stringify(summary, null, 1));
if (options.json) fs.writeFileSync(options.json, `${JSON.stringify({ summary, results }, null, 1)}\n`);
