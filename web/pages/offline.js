// The service worker of the studio. It caches the pages and every file that they load. If the network connection fails,
// it answers from the cache.
const KEPT = 'linnet';  // the name of the cache
const PAGES = [
  './', 'index.html', 'race.html', 'couplet.html', 'text.html', 'speech.html', 'hood.html', 'shell.css', 'studio.css',
  'couplet.css', 'shell.js', 'studio.js', 'digits.js', 'race.js', 'couplet.js', 'text.js', 'speech.js', 'microphone.js',
  'hood.js', 'worker.js', 'linnet.js', 'linnet.wasm', 'test-digits.png',
];

self.addEventListener('install', event => {
  self.skipWaiting();
  event.waitUntil(caches.open(KEPT).then(kept => kept.addAll(PAGES)));
});
self.addEventListener('activate', event => event.waitUntil(self.clients.claim()));

async function keep(request, response) {
  try {
    await (await caches.open(KEPT)).put(request, response);
  } catch {}  // no room, or no storage: not kept
}

self.addEventListener('fetch', event => {
  const {method, url} = event.request, {scope} = self.registration;
  if (method !== 'GET' || !url.startsWith(scope) || url.startsWith(`${scope}v1/`)) return;  // v1: of the server
  event.respondWith((async () => {
    try {
      const response = await fetch(event.request);
      if (response.ok) event.waitUntil(keep(event.request, response.clone()));
      return response;
    } catch (error) {
      const old = await caches.match(event.request, {ignoreSearch: true}).catch(() => undefined);
      if (old === undefined) throw error;
      return old;
    }
  })());
});
