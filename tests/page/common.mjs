// Shared by page_test and openai_test: loads npm packages, starts a server on a free port, and runs
// tests one after the other.
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const SKIPPED = 77;

// Loads an npm package installed in this folder or globally; skips the test if there is none.
export function load(name) {
  const folders = [import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname)];
  try { folders.push(path.dirname(execFileSync('npm', ['root', '-g'], { encoding: 'utf8' }).trim())); } catch {}
  for (const folder of folders) {
    const require = createRequire(path.join(folder, 'node_modules', 'none.js'));
    try { return { module: require(name), resolve: require.resolve }; } catch {}
  }
  console.log(`skipped: npm package ${name} is not installed; 'npm install --prefix tests/page' installs it`);
  process.exit(SKIPPED);
}

export function chromium() {
  const found = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome'].find(existsSync);
  if (found) return found;
  console.log('skipped: there is no Chromium; on Debian, install chromium');
  process.exit(SKIPPED);
}

// Starts linnet serve of the build's folder `bin` with these models; returns { url, stop() }.
export async function serve(bin, models, ...flags) {
  const server = spawn(path.join(bin, 'linnet'), ['serve', ...models, '--port', '0', '--quiet', ...flags]);
  let said = '';
  const url = await new Promise((resolve, reject) => {
    server.stderr.on('data', (data) => { said += data; });
    server.on('exit', () => reject(new Error(said)));
    server.stdout.on('data', (data) => {
      said += data;
      const found = /http:\/\/[\d.]+:\d+/.exec(said);
      if (found) resolve(found[0]);
    });
  });
  return { url, stop: () => { server.removeAllListeners('exit'); server.kill('SIGKILL'); } };
}

// Runs the tests ({ name: async function }), calls finish() and ends the process.
export async function run(tests, finish) {
  let failed = 0;
  for (const [name, test] of Object.entries(tests)) {
    try {
      await test();
      console.log(`ok      ${name}`);
    } catch (error) {
      ++failed;
      console.log(`FAILED  ${name}\n${error.stack}`);
    }
  }
  await finish();
  process.exit(failed > 0 ? 1 : 0);
}

export { assert };
